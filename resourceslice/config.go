// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/resourceslice/internal/validation"
)

// The defaults of Config.
const (
	// DefaultMinInterval is the least time between two publishes of a pool.
	DefaultMinInterval = time.Second
	// DefaultShutdownTimeout is the time to complete incomplete pools after Run's
	// context is done.
	DefaultShutdownTimeout = 2 * time.Second
	// DefaultName is the name of the controller in logs, metrics and health
	// checks.
	DefaultName = "resourceslice"
)

const (
	// concurrency is the largest number of writes under way at once, of all pools.
	concurrency = 8
	// workers is the largest number of pools that are reconciled at once.
	workers = 4
	// callTimeout is the deadline of one API call, including client-go's own retries.
	callTimeout = 10 * time.Second
)

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads and writes ResourceSlices. clientset.ResourceV1() is one. Its
	// rate limit should be off (rest.Config.QPS -1) or at least 50 a second, because with
	// client-go's default of 5 the first publish of 10,000 devices takes half a minute. It
	// should use protobuf, the default of a clientset.
	Client resourcev1client.ResourceSlicesGetter
	// Required, unless every pool has a NodeSelection. NodeName is the node
	// whose devices are published. A controller without a node publishes pools of
	// the cluster. Only one such controller may run, so it usually needs a leader
	// election.
	NodeName string
	// Required if NodeName is set. Owner returns the owner of the slices, usually the
	// Node: see NodeOwner. Slices without an owner are never garbage collected.
	Owner OwnerFunc
	// Driver limits the controller to one driver. Then the watch returns only that
	// driver's slices, and Set rejects other drivers. Remove and SetAll still remove
	// pools of other drivers, for a driver that was renamed. Default: any driver, so that
	// a program with several drivers needs one watch.
	Driver string
	// Labels are set on every slice. Other labels of a slice stay. Default: none.
	Labels map[string]string

	// MinInterval is the least time between two publishes of a pool. The first
	// Set is published at once. Sets that follow within MinInterval are published
	// together. A Set that removes a device, or adds a taint with the effect NoSchedule
	// or NoExecute, does not wait. A driver that has set SyncDelay of the DRA helper needs it.
	// Default: DefaultMinInterval.
	MinInterval time.Duration
	// HoldEmpty delays a Set without devices if the pool has devices on the API server,
	// because a driver that starts too early at boot may find no devices. Default: 0, no
	// delay.
	HoldEmpty time.Duration
	// PublishUnrestricted publishes a device even if the API server drops one of these
	// fields: consumesCounters, compatibilityGroups in it (feature gate
	// DRADeviceCompatibilityGroups, off by default in Kubernetes 1.37), or a taint with the
	// effect NoSchedule or NoExecute. By default such a device is not published, because
	// partitions that exclude each other could be allocated at the same time. The DRA helper
	// (k8s.io/dynamic-resource-allocation/resourceslice) always publishes it and reports the
	// field (kubernetes#131246), so a driver that comes from there may rely on that.
	//
	// If other fields are dropped, the device is always published. Without
	// bindingConditions a Pod is bound before its device is ready, and waits when the
	// driver prepares the claim. Without nodeAllocatableResources the scheduler does not
	// subtract the resources that the device needs from those of the node. A
	// *DroppedFieldsError is reported in all cases. Default: false.
	PublishUnrestricted bool
	// ShutdownTimeout is the time that Run has to complete incomplete pools after its
	// context is done. Slices are not deleted. Default: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Name is the name in logs, metrics and health checks. The field manager of the
	// slices is "kubewright-" and Name. A second publisher of a pool reports it in its
	// [ContendedError]. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from. It is called
	// with an *InvalidError, *DroppedFieldsError, *ForbiddenError, *ContendedError or
	// *UnavailableError when the problem begins, and with an API outage that has lasted for
	// 30 seconds. None of these errors ends the controller. A driver that passes them to
	// HandleError of its kubeletplugin.DRAPlugin must wrap each with
	// kubeletplugin.ErrRecoverable, because the upstream examples and most drivers exit on
	// all other errors. The error of a panic in a function of Config has a method
	// Stack() []byte, which errors.As finds. ErrorHandler is called synchronously, by
	// several goroutines at a time, and must not block. Default: the errors are logged with
	// the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// Hooks are called after writes and publishes. Default: none.
	Hooks Hooks
}

// complete sets the defaults. The error lists every invalid field.
func (cfg *Config) complete() error {
	var problems []error
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(field.NewPath("Client"), "for example clientset.ResourceV1()"))
	}
	if cfg.NodeName != "" && cfg.Owner == nil {
		problems = append(problems, field.Required(field.NewPath("Owner"), "slices of a node must go away with it"))
	}
	if cfg.Driver != "" {
		problems = append(problems, lifecycle.Problems(validation.DriverName(cfg.Driver, field.NewPath("Driver")))...)
	}
	problems = slices.Concat(
		problems,
		nodename.Check("NodeName", cfg.NodeName),
		lifecycle.Problems(metav1validation.ValidateLabels(cfg.Labels, field.NewPath("Labels"))),
		lifecycle.DefaultDuration("MinInterval", &cfg.MinInterval, DefaultMinInterval, time.Millisecond),
		lifecycle.DefaultDuration("HoldEmpty", &cfg.HoldEmpty, 0, 0),
		lifecycle.DefaultDuration("ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, time.Millisecond),
	)
	cfg.Labels = maps.Clone(cfg.Labels)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	return lifecycle.InvalidConfig("resourceslice", problems)
}
