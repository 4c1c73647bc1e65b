"""What people read. It looks at records and nothing else."""

from gradcore.report.recording import Recording, pack, unpack
from gradcore.report.step import SCHEMA_VERSION, StepReport, build_report, load_report

__all__ = ["SCHEMA_VERSION", "Recording", "StepReport", "build_report", "load_report", "pack", "unpack"]
