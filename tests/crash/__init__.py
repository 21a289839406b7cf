"""Stores that are killed, that lose power, whose disk fails: what was promised is there, and all of it is right.

workload.py    random messages, and what was acknowledged of them
checks.py      a store held against its own log, message by message
writer.py      a process that appends until it is killed
"""
