"""A rehearsal: what can be tried of a lane in minutes, before weights are brought anywhere."""

from lanes.rehearsal.steps import rehearse
from lanes.rehearsal.values import STEPS, Scope, Step

__all__ = ["STEPS", "Scope", "Step", "rehearse"]
