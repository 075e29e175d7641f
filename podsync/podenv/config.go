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

// Defaults of [Config].
const (
	DefaultServiceAge  = 5 * time.Second
	DefaultCallTimeout = 10 * time.Second
)

// Config is what [New] needs. A clientset's CoreV1() is each of the clients in it.
type Config struct {
	// Required. ConfigMaps reads ConfigMaps, one at a time.
	ConfigMaps corev1client.ConfigMapsGetter
	// Required. Secrets reads Secrets, one at a time.
	Secrets corev1client.SecretsGetter

	// Services lists the Services of a pod's namespace and reads the Service
	// kubernetes of the namespace default, for the variables that name them. Nil
	// leaves those variables out.
	Services corev1client.ServicesGetter
	// ServiceAccounts makes the tokens of projected volumes. Nil makes volumes
	// that ask for one an error.
	ServiceAccounts corev1client.ServiceAccountsGetter
	// Allocatable returns the node's allocatable resources, which stand in for
	// limits of cpu, memory and ephemeral storage that a pod doesn't set. It is
	// called at any time, from any goroutine. Nil gives such limits the value 0.
	Allocatable func() corev1.ResourceList
	// ReadFile returns the file at a slash-separated path in a volume of the pod,
	// for variables with a fileKeyRef (KEP-3721); fs.ErrNotExist if there is none.
	// The path is local: it doesn't lead out of the volume by its spelling, but
	// symbolic links are ReadFile's to mind, as with os.Root. Nil makes such
	// variables an error.
	ReadFile func(ctx context.Context, pod *corev1.Pod, volume, path string) ([]byte, error)

	// ServiceAge is how old a list of Services may be. Links are a picture of the
	// moment in any case: a container doesn't learn of a Service that comes after
	// it. Zero means DefaultServiceAge, 5 s.
	ServiceAge time.Duration
	// CallTimeout bounds each request. Zero means DefaultCallTimeout, 10 s.
	CallTimeout time.Duration
}

// validate sets defaults and returns every problem at once.
func (c *Config) validate() error {
	var problems field.ErrorList
	if c.ConfigMaps == nil {
		problems = append(problems, field.Required(field.NewPath("ConfigMaps"), ""))
	}
	if c.Secrets == nil {
		problems = append(problems, field.Required(field.NewPath("Secrets"), ""))
	}
	problems = append(problems, lifecycle.DefaultDuration("ServiceAge", &c.ServiceAge, DefaultServiceAge, time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("CallTimeout", &c.CallTimeout, DefaultCallTimeout, time.Millisecond)...)
	return lifecycle.InvalidConfig("podenv", problems)
}
