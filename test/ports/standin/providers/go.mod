module github.com/virtual-kubelet/virtual-kubelet/providers

go 1.26.0
