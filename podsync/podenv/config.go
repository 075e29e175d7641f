// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	certificatesv1client "k8s.io/client-go/kubernetes/typed/certificates/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config.
const (
	// DefaultServiceAge is the greatest age of a list of Services.
	DefaultServiceAge = 5 * time.Second
	// DefaultCallTimeout is the deadline of one API call.
	DefaultCallTimeout = 10 * time.Second
)

// Config configures a Resolver. The zero value of every optional field means the
// default that its comment states. clientset.CoreV1() can be the value of each client
// except for Certificates.
type Config struct {
	// Required. ConfigMaps reads ConfigMaps, one at a time.
	ConfigMaps corev1client.ConfigMapsGetter
	// Required. Secrets reads Secrets, one at a time.
	Secrets corev1client.SecretsGetter

	// Services lists the Services of a pod's namespace and reads the Service
	// kubernetes of the namespace default, for the variables with their addresses.
	// Default: none, and these variables are left out.
	Services corev1client.ServicesGetter
	// ServiceAccounts requests the tokens of projected volumes. Default: none, and a
	// volume with a token is an error.
	ServiceAccounts corev1client.ServiceAccountsGetter
	// Certificates requests the certificates of podCertificate volumes and reads the
	// bundles of clusterTrustBundle volumes, which Kubernetes has by default since
	// 1.37. clientset.CertificatesV1() is one. It also needs ServiceAccounts and Nodes.
	// Default: none, and such volumes are an error.
	Certificates CertificatesClient
	// Nodes reads the Node of a pod that has a podCertificate volume. Required with
	// Certificates.
	Nodes corev1client.NodesGetter
	// Allocatable returns the node's allocatable resources. They replace limits of
	// cpu, memory and ephemeral storage that a pod doesn't set. It is called at any
	// time, from any goroutine, and must answer from memory. A panic in it, or in ReadFile,
	// reaches the caller of the Resolver. Default: such limits have the value 0.
	Allocatable func() corev1.ResourceList
	// ReadFile returns the content of a file in a volume of the pod, for variables with
	// a fileKeyRef (KEP-3721), or fs.ErrNotExist. The path is slash-separated and local,
	// as filepath.IsLocal has it. But ReadFile must make sure that no symbolic link
	// leads out of the volume, for example with os.Root. It is called for several pods at the
	// same time, and must return when ctx is done, which is the context of the caller of the
	// Resolver. Default: none, and such variables are an error.
	ReadFile func(ctx context.Context, pod *corev1.Pod, volume, path string) ([]byte, error)

	// ServiceAge is the greatest age of a list of Services. A container doesn't get the
	// variables of a Service that is created after its start anyway. Default:
	// DefaultServiceAge.
	ServiceAge time.Duration
	// CallTimeout is the deadline of one API call, including retries inside client-go.
	// Default: DefaultCallTimeout.
	CallTimeout time.Duration
}

// complete fills in the defaults and returns all that is wrong.
func (cfg *Config) complete() error {
	var problems []error
	if lifecycle.IsNil(cfg.ConfigMaps) {
		problems = append(problems, field.Required(field.NewPath("ConfigMaps"), "for example clientset.CoreV1()"))
	}
	if lifecycle.IsNil(cfg.Secrets) {
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

// CertificatesClient is the part of the client that Config.Certificates needs. It is called
// for different pods at the same time.
type CertificatesClient interface {
	certificatesv1client.ClusterTrustBundlesGetter
	certificatesv1client.PodCertificateRequestsGetter
}
