"""The files of Apache RocketMQ's store, one module per format."""
