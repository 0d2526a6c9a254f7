//! A kind of objects, kept up to date.

use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt as _;
use kube::runtime::reflector::{Store, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

/// Starts watches.
pub(super) struct Watch<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) changed: &'a Arc<Notify>,
}

impl Watch<'_> {
    pub(super) fn start<K>(&self, config: watcher::Config) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let (reader, writer) = store();
        let api: Api<K> = Api::namespaced(self.client.clone(), self.namespace);
        let stream = watcher(api, config)
            .modify(|object| object.managed_fields_mut().clear())
            .default_backoff()
            .reflect(writer);
        let changed = Arc::clone(self.changed);
        tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                match event {
                    Ok(_) => changed.notify_one(),
                    Err(error) => tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a watch was cut; it begins again"
                    ),
                }
            }
        });
        reader
    }
}
