"""The S3 wire: endpoint, credentials, XML and a client that sends one signed attempt a call."""
