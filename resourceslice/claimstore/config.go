// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/internal/lifecycle"
)

// DefaultInterval is the default time between two passes of Run.
const DefaultInterval = 5 * time.Minute

// callTimeout is the deadline of a request to the API server.
const callTimeout = 10 * time.Second

// A Claim is a ResourceClaim as the store knows it.
type Claim struct {
	types.NamespacedName
	// UID identifies the claim: another claim may have its name later.
	UID types.UID
	// Devices are the devices of the driver that the claim holds, without those
	// with admin access, which hold nothing.
	Devices []Device
}

// String returns the namespace, the name and the UID of the claim.
func (c Claim) String() string { return fmt.Sprintf("%s (UID %s)", c.NamespacedName, c.UID) }

// A Device is a device, or a share of one, that is allocated to a claim.
type Device struct {
	// Pool and Name are those of the device in a ResourceSlice.
	Pool, Name string
	// ShareID is that of the allocation result. It is empty for a device that one
	// claim has as a whole.
	ShareID types.UID
}

// A Phase is what Config.Unprepare has to undo.
type Phase string

// The phases that Config.Unprepare is called with.
const (
	// Preparing means that the driver passed a state to begin, and that its
	// function did not return, or failed: any part of the work may be done.
	Preparing Phase = "Preparing"
	// Prepared means that the claim was prepared.
	Prepared Phase = "Prepared"
	// Rebooted means that the claim was prepared, or about to be, when the machine
	// went down. What lives in the kernel or in devices is gone; files may be left.
	Rebooted Phase = "Rebooted"
	// Unreadable means that the record is damaged, or of a version or type that this
	// program can't read. The state is its zero value. Claim has what could be read,
	// usually all devices.
	Unreadable Phase = "Unreadable"
	// Absent means that there is no record. The state is its zero value, and Claim
	// has no devices. The claim was never prepared, its driver used no store then,
	// or its record is lost. A driver removes what it finds by the UID of the claim.
	Absent Phase = "Absent"
)

// Config configures a Store whose claims have a state of type S. The zero value of
// an optional field means the default that its comment states.
type Config[S any] struct {
	// Required. Dir is the directory of the store. Its parent must exist. Nothing
	// else may use it, and only the user of this process may write it. It must
	// outlive the Pod of the driver, so that a new Pod finds it.
	Dir string
	// Required. Driver is the name of the DRA driver. The store ignores devices of
	// other drivers, and a directory of another driver is refused.
	Driver string
	// Required. BootID identifies the boot of the machine. See [BootID].
	BootID string
	// Required. Claims reads ResourceClaims, with the verb get.
	Claims resourcev1client.ResourceClaimsGetter
	// Required. Unprepare undoes what was done for a claim. It must succeed if
	// nothing is left to undo, because it is called again after an error and after
	// a crash. The store calls it for one claim at a time, also across the
	// processes that share Dir, and for different claims concurrently.
	//
	// A panic in it counts as an error.
	Unprepare func(ctx context.Context, claim Claim, state S, phase Phase) error

	// Shared reports whether several claims may hold the device at once although
	// their allocations name no share, for example because the driver divides its
	// time. It must be safe for concurrent use. Default: no device.
	Shared func(Device) bool
	// Interval is the time between two passes of Run, which sends one GET for each
	// claim in a pass, and the time that a claim keeps its devices after it is gone. At least 1 s. Default: DefaultInterval.
	Interval time.Duration
	// Name is the name of the store in logs and checks. Default: "claimstore".
	Name string
	// ErrorHandler is called with errors that Run recovers from, and with damage of
	// the store's file. Repeats of the same class are suppressed until a pass
	// succeeds. It must not block. Default: the error is logged.
	ErrorHandler func(ctx context.Context, err error, msg string)
}

func (c *Config[S]) complete() error {
	var problems field.ErrorList
	problems = append(problems, lifecycle.Required("Dir", c.Dir != "", "a directory that outlives the driver's Pod")...)
	problems = append(problems, lifecycle.Required("Driver", c.Driver != "", "the name of the DRA driver")...)
	if strings.ContainsAny(c.Driver, " \n") {
		problems = append(problems, field.Invalid(field.NewPath("Driver"), c.Driver, "must be a DNS subdomain"))
	}
	problems = append(problems, lifecycle.Required("BootID", c.BootID != "", "the result of claimstore.BootID")...)
	problems = append(problems, lifecycle.Required("Claims", c.Claims != nil, "for example ResourceV1 of a clientset")...)
	problems = append(problems, lifecycle.Required("Unprepare", c.Unprepare != nil, "a function that undoes what Prepare does")...)
	problems = append(problems, lifecycle.DefaultDuration("Interval", &c.Interval, DefaultInterval, time.Second)...)
	if c.Name == "" {
		c.Name = "claimstore"
	}
	if c.Shared == nil {
		c.Shared = func(Device) bool { return false }
	}
	return lifecycle.InvalidConfig("claimstore", problems)
}

// BootID returns the ID that Linux gives to each boot of the machine. In a
// container it is that of the host.
func BootID() (string, error) {
	id, err := os.ReadFile(filepath.FromSlash("/proc/sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("claimstore: the ID of this boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
