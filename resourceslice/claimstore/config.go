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

// A Claim is what the store knows about a ResourceClaim.
type Claim struct {
	types.NamespacedName
	// UID identifies the claim, because another claim may have the same name later.
	UID types.UID
	// Devices are the devices of the driver that the claim holds. Devices with admin
	// access are not included, because the claim does not hold them.
	Devices []Device
	// AdminDevices are the devices that the claim uses with admin access. Records that an
	// older version of this package has written do not contain them.
	AdminDevices []Device
}

// String returns the namespace, the name and the UID of the claim.
func (c Claim) String() string { return fmt.Sprintf("%s (UID %s)", c.NamespacedName, c.UID) }

// A Device is a device, or a share of one, that is allocated to a claim.
type Device struct {
	// Pool and Name identify the device in the ResourceSlices of the driver.
	Pool, Name string
	// ShareID is copied from the allocation result. It is empty if the claim has the
	// whole device.
	ShareID types.UID
}

// A Phase shows what Config.Unprepare must undo.
type Phase string

// The phases of a Record, and those that Config.Unprepare is called with.
const (
	// Preparing means that the driver passed a state to begin, and that its function
	// failed or did not return, or that an earlier call of Config.Unprepare failed or did
	// not return. Any part of the work may be done.
	Preparing Phase = "Preparing"
	// Prepared means that the claim was prepared.
	Prepared Phase = "Prepared"
	// Rebooted means that the claim was prepared, or being prepared, before the machine
	// was restarted. Changes in the kernel and in devices are gone, but files may be left.
	Rebooted Phase = "Rebooted"
	// Unreadable means that the record is damaged, or has a version or type that this
	// program can't read. The state is its zero value. Claim contains the fields that
	// could be read, usually all devices. Run ends such a claim only if its name is certain.
	Unreadable Phase = "Unreadable"
	// Absent means that there is no record. The state is its zero value, and Claim
	// has no devices. Either the claim was never prepared, or the driver did not use a
	// store then, or the record is lost. A driver should remove everything that it finds
	// for the UID of the claim.
	Absent Phase = "Absent"
)

// Config configures a Store whose claims have a state of type S. The zero value of
// an optional field means the default that its comment states.
type Config[S any] struct {
	// Required. Dir is the directory of the store. Its parent must exist. Other programs
	// must not use it, and only the user of this process may have write permission. It
	// must outlive the Pod of the driver, so that the next Pod finds it.
	Dir string
	// Required. Driver is the name of the DRA driver. The store ignores devices of
	// other drivers, and Open returns an error for a directory of another driver.
	Driver string
	// Required. BootID identifies the boot of the machine. See [BootID].
	BootID string
	// Required. Claims reads ResourceClaims. It needs the verb get.
	Claims resourcev1client.ResourceClaimsGetter
	// Required. Unprepare undoes everything that was done for a claim. It must succeed
	// if nothing is left to undo, because it is called again after an error and after a
	// crash. For one claim there is one call at a time, even if several processes share
	// Dir. For different claims it is called concurrently. It has no deadline of its own:
	// its context is that of the method Unprepare or of Run. A panic counts as an error.
	Unprepare func(ctx context.Context, claim Claim, state S, phase Phase) error

	// Restore looks at the effects of a claim that is recorded as prepared, such as a CDI
	// file, a mount or a daemon, and makes those again that are missing. A record does not
	// prove them: a container that restarts may lose /run while the boot ID stays. Restore
	// returns the state; if it differs, for example in the ID of a new daemon, it is
	// recorded. A crash before that repeats the call with the former state.
	//
	// Prepare calls it each time that it finds the claim prepared, and returns its error.
	// Run calls it once for each prepared claim, unless the API server says that the claim
	// has lost its devices, and tries again after an error, which keeps Ready open. The
	// claim stays prepared after an error.
	//
	// Restore holds the claim's lock until it returns, and its context ends after 30 s. A
	// call that ignores its context delays Unprepare of its claim, and no other claim. It
	// must not call the Store. It is called concurrently for different claims. A panic counts
	// as an error. Default: the record counts as proof.
	Restore func(ctx context.Context, claim Claim, state S) (S, error)
	// Shared reports whether several claims may hold the whole device at once, for
	// example because the driver divides the device's time among them. Prepare calls it for each
	// device, for different claims concurrently, and it must answer from memory. A panic is an
	// error of Prepare. Default: it returns false for all devices.
	Shared func(Device) bool
	// Interval is the time between two passes of Run. A pass sends one GET for each
	// claim, and another one before it ends a claim. A claim that is gone keeps its
	// devices for at least this time. At least 1 s.
	// Default: DefaultInterval.
	Interval time.Duration
	// Name is the name of the store in logs and checks. Default: "claimstore".
	Name string
	// ErrorHandler is called with errors that Run recovers from, and if the store's file
	// is damaged. Repeats of the same class are suppressed until a pass succeeds. It may be
	// called by several goroutines at a time, and must not block. Default: the error is logged.
	ErrorHandler func(ctx context.Context, err error, msg string)
}

func (c *Config[S]) complete() error {
	var problems []error
	problems = append(problems, lifecycle.Required("Dir", c.Dir != "", "a directory that outlives the driver's Pod")...)
	problems = append(problems, lifecycle.Required("Driver", c.Driver != "", "the name of the DRA driver")...)
	if strings.ContainsAny(c.Driver, " \n") {
		problems = append(problems, field.Invalid(field.NewPath("Driver"), c.Driver, "must be a DNS subdomain"))
	}
	problems = append(problems, lifecycle.Required("BootID", c.BootID != "", "the result of claimstore.BootID")...)
	problems = append(problems, lifecycle.Required("Claims", !lifecycle.IsNil(c.Claims), "for example ResourceV1 of a clientset")...)
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

// BootID returns an ID that Linux changes with each boot of the machine. In a container,
// also in one that is a node of kind or LXC, it is the ID of the host. So the ID stays when
// such a node restarts and loses /run; see Config.Restore.
func BootID() (string, error) {
	id, err := os.ReadFile(filepath.FromSlash("/proc/sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("claimstore: the ID of this boot: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
