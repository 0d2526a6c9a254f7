// Definitions of other projects' kinds that the chart makes objects of. Nothing is built from these modules: their files are read.
module weir.dev/cluster/definitions

go 1.25

require (
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.2.0
)
