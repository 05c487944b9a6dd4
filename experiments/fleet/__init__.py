"""Operation of a fleet of real boards: certificates, proxy, firewall, inventory, playbooks and remote runs."""
