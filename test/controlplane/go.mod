module github.com/kubewright/kubewright/test/controlplane

go 1.26.0
