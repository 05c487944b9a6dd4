"""The fleet's health: ``fleet_assessment`` builds the records, the ``*_rules`` modules find what is wrong."""
