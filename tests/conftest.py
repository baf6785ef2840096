"""Before torch is loaded: threads that wait must not starve what else runs on the machine."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
