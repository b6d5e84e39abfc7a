"""Creates tenants: namespace, roles, quotas."""
