"""Check how Apptainer without a setuid starter opens image files on a node."""

from __future__ import annotations

MOUNTED, UNPACKED, CLOSED = "mounted", "unpacked", "no"
# Its argument: the program. Apptainer looks for its helpers in its own directory, then on the PATH.
IMAGE_LOOK = """\
libexec=$("$1" buildcfg LIBEXECDIR 2>/dev/null)
case "$libexec" in /*) ;; *) return 0 ;; esac
conf=$("$1" buildcfg APPTAINER_CONF_FILE 2>/dev/null)
if [ -u "$libexec/apptainer/bin/starter-suid" ] && ! grep -qs '^allow setuid *= *no' "$conf"; then
    return 0
fi
helper() { PATH="$libexec/apptainer/bin:$PATH" command -v "$1" >/dev/null; }
if [ -r /dev/fuse ] && [ -w /dev/fuse ] && { helper squashfuse_ll || helper squashfuse; }; then
    echo images=mounted
elif helper unsquashfs; then
    echo images=unpacked
else
    echo images=no
fi
"""
_WHY = "has no setuid starter there, and cannot mount SIF images because squashfuse or /dev/fuse is missing"
_CURE = "install squashfuse, or apptainer-suid"
SLOW_IMAGES = f"{_WHY}: each start of a learner unpacks its whole image; {_CURE}"
NO_IMAGES = f"{_WHY}, and cannot unpack them because unsquashfs is missing: no learner starts; {_CURE}"
