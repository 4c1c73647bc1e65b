"""What a function reads and changes outside itself while it is traced: ``watch`` sees every call.

``called``, ``looked_up``, ``gradient_reads``, ``assignments``, ``harmless``, ``former``, ``outside``, ``schedules``,
``optimizer_runs``, ``newness``, ``stored`` and ``began`` note what each does.
"""
