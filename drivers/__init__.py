"""The dialects of S3 that buquet knows; installed as `buquet.drivers`."""
