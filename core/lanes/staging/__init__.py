"""Bring what a lane needs to where its processes look for it: files, copies on the nodes, host scripts."""

from lanes.staging.files import Progress, stage

__all__ = ["Progress", "stage"]
