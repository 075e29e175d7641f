// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config.
const (
	// DefaultServiceAge is how old a list of Services may be.
	DefaultServiceAge = 5 * time.Second
	// DefaultCallTimeout is the deadline of one API call.
	DefaultCallTimeout = 10 * time.Second
)

// Config configures a Resolver. clientset.CoreV1() is each of the clients in it but
// Certificates.
// The zero value of every optional field means the default that its comment
// states.
type Config struct {
	// Required. ConfigMaps reads ConfigMaps, one at a time.
	ConfigMaps corev1client.ConfigMapsGetter
	// Required. Secrets reads Secrets, one at a time.
	Secrets corev1client.SecretsGetter

	// Services lists the Services of a pod's namespace and reads the Service
	// kubernetes of the namespace default, for the variables that name them. Default:
	// none, and those variables are left out.
	Services corev1client.ServicesGetter
	// ServiceAccounts makes the tokens of projected volumes. Default: none, and
	// volumes that ask for one are an error.
	ServiceAccounts corev1client.ServiceAccountsGetter
	// Certificates requests the certificates of podCertificate volumes and reads the
	// bundles of clusterTrustBundle volumes, which Kubernetes has by default since
	// 1.37; for example clientset.CertificatesV1(). It needs ServiceAccounts and Nodes.
	// Default: none, and volumes that ask for such are an error.
	Certificates CertificatesClient
	// Nodes reads the Node of a pod that asks for a certificate. Required with
	// Certificates.
	Nodes corev1client.NodesGetter
	// Allocatable returns the node's allocatable resources, which stand in for
	// limits of cpu, memory and ephemeral storage that a pod doesn't set. It is
	// called at any time, from any goroutine. Default: such limits have the value
	// 0.
	Allocatable func() corev1.ResourceList
	// ReadFile returns the file at a slash-separated path in a volume of the pod,
	// for variables with a fileKeyRef (KEP-3721); fs.ErrNotExist if there is none.
	// The path is local: it doesn't lead out of the volume by its spelling, but
	// symbolic links are ReadFile's to mind, as with os.Root. Default: none, and
	// such variables are an error.
	ReadFile func(ctx context.Context, pod *corev1.Pod, volume, path string) ([]byte, error)

	// ServiceAge is how old a list of Services may be. Links are a picture of the
	// moment in any case: a container doesn't learn of a Service that comes after
	// it. Default: DefaultServiceAge.
	ServiceAge time.Duration
	// CallTimeout is the deadline of one API call, its retries inside client-go
	// included. Default: DefaultCallTimeout.
	CallTimeout time.Duration
}

// complete fills in the defaults and returns all that is wrong.
func (cfg *Config) complete() error {
	var problems field.ErrorList
	if cfg.ConfigMaps == nil {
		problems = append(problems, field.Required(field.NewPath("ConfigMaps"), "for example clientset.CoreV1()"))
	}
	if cfg.Secrets == nil {
		problems = append(problems, field.Required(field.NewPath("Secrets"), "for example clientset.CoreV1()"))
	}
	if cfg.Certificates != nil && cfg.ServiceAccounts == nil {
		problems = append(problems, field.Required(field.NewPath("ServiceAccounts"), "Certificates needs it"))
	}
	if cfg.Certificates != nil && cfg.Nodes == nil {
		problems = append(problems, field.Required(field.NewPath("Nodes"), "Certificates needs it"))
	}
	problems = append(problems, lifecycle.DefaultDuration("ServiceAge", &cfg.ServiceAge, DefaultServiceAge, time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, time.Millisecond)...)
	return lifecycle.InvalidConfig("podenv", problems)
}
