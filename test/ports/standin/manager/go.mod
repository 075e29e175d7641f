module github.com/virtual-kubelet/virtual-kubelet/manager

go 1.26.0
