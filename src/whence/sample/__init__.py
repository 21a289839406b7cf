"""Sample data: the small RocketMQ store that ``whence demo`` opens.

``store.tar.gz`` beside this file holds one folder, ``store/``; PROVENANCE.md tells what wrote it and what
is in it. The package has no code. Read it as a resource, for whence may be installed in an archive::

    archive = importlib.resources.files("whence.sample") / "store.tar.gz"
"""
