"""What tests import, ours and third parties': virtual time, counting and faulty stores, the contract."""
