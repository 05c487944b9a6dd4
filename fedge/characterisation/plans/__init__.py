"""What is to be measured: the YAML of a plan, checked, and the points that it stands for."""
