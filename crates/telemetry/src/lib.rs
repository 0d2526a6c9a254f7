//! Logs, metrics, the admin server and shutdown; knows nothing of models or tenants.
