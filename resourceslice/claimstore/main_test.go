// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/internal/durable"
	"github.com/kubewright/kubewright/internal/durable/crashfs"
)

const driver = "gpu.example.com"

// partition is the state of the tests' claims.
type partition struct {
	ID    string `json:"id"`
	Extra string `json:"extra,omitempty"`
}

// cluster answers GET for ResourceClaims, without the cost of an API server: the
// crash tests open some ten thousand stores.
type cluster struct {
	resourcev1client.ResourceClaimInterface
	mu     sync.Mutex
	claims map[string]*resourcev1.ResourceClaim
	err    error
	gets   int
	// answered is called once, after the next answer.
	answered func()
}

func (c *cluster) ResourceClaims(string) resourcev1client.ResourceClaimInterface { return c }

func (c *cluster) Get(_ context.Context, name string, _ metav1.GetOptions) (*resourcev1.ResourceClaim, error) {
	defer func() {
		c.mu.Lock()
		f := c.answered
		c.answered = nil
		c.mu.Unlock()
		if f != nil {
			f()
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gets++
	if c.err != nil {
		return nil, c.err
	}
	if name == "" {
		return nil, errors.New("resource name may not be empty") // client-go sends no request
	}
	if claim := c.claims[name]; claim != nil {
		return claim.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), name)
}

func (c *cluster) put(claim *resourcev1.ResourceClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.claims == nil {
		c.claims = map[string]*resourcev1.ResourceClaim{}
	}
	c.claims[claim.Name] = claim
}

func (c *cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// testClaim returns a claim that a Pod uses, with devices of the driver. Its UID
// is its name and "-uid".
func testClaim(name string, devices ...string) *resourcev1.ResourceClaim {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}}
	claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p"}}
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: driver, Pool: "n1", Device: d})
	}
	return claim
}

// hardware is what the tests' driver changes, by the UID of the claim. It outlives
// processes, and what is in files outlives the boot.
type hardware struct {
	mu         sync.Mutex
	partitions map[types.UID]string
	files      map[types.UID]string
	calls      []string // of the driver, in order
	failing    error    // the error of Unprepare
}

func newHardware() *hardware {
	return &hardware{partitions: map[types.UID]string{}, files: map[types.UID]string{}}
}

func (h *hardware) unprepare(_ context.Context, claim Claim, state partition, phase Phase) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, strings.TrimSpace(fmt.Sprintf("unprepare %s %s %s", claim.Name, phase, state.ID)))
	if h.failing != nil {
		return h.failing
	}
	delete(h.partitions, claim.UID)
	delete(h.files, claim.UID)
	return nil
}

// prepare returns the function for Prepare.
func (h *hardware) prepare(claim *resourcev1.ResourceClaim, id string) func(context.Context, func(partition) error) (partition, error) {
	return func(_ context.Context, begin func(partition) error) (partition, error) {
		if err := begin(partition{ID: id}); err != nil {
			return partition{}, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls = append(h.calls, fmt.Sprintf("prepare %s %s", claim.Name, id))
		h.partitions[claim.UID], h.files[claim.UID] = id, id
		return partition{ID: id, Extra: "done"}, nil
	}
}

func (h *hardware) did() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	did := strings.Join(h.calls, ", ")
	h.calls = nil
	return did
}

func (h *hardware) left() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprint(slices.Sorted(maps.Keys(h.partitions)), slices.Sorted(maps.Keys(h.files)))
}

// reboot returns what a boot leaves: the files.
func (h *hardware) reboot() *hardware {
	fresh := newHardware()
	maps.Copy(fresh.files, h.files)
	return fresh
}

func (h *hardware) clone() *hardware {
	fresh := h.reboot()
	maps.Copy(fresh.partitions, h.partitions)
	return fresh
}

func testConfig(h *hardware, c *cluster) Config[partition] {
	return Config[partition]{Dir: "store", Driver: driver, BootID: "boot-1", Claims: c, Unprepare: h.unprepare}
}

// rig is a store on a disk in memory.
type rig struct {
	*Store[partition]
	t     *testing.T
	disk  *crashfs.FS
	hw    *hardware
	api   *cluster
	seen  sightings
	tells []string
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, disk: crashfs.New(), hw: newHardware(), api: &cluster{}}
	r.open("boot-1")
	return r
}

// open opens the store as the next process does.
func (r *rig) open(boot string) {
	r.t.Helper()
	cfg := testConfig(r.hw, r.api)
	cfg.BootID = boot
	cfg.ErrorHandler = func(_ context.Context, err error, msg string) { r.tells = append(r.tells, msg+": "+err.Error()) }
	s, err := openOn(cfg, r.disk)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Store = s
	r.seen = newSightings()
}

// openOn opens a store that no other process uses. It asserts the invariants of
// the journal after each call.
func openOn(cfg Config[partition], fs durable.FS) (*Store[partition], error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return open(context.Background(), cfg, fs, nil)
}

// at returns a clock that stands still.
func at(now time.Time) func() time.Time { return func() time.Time { return now } }

func (r *rig) prepare(claim *resourcev1.ResourceClaim, id string) (partition, error) {
	return r.Prepare(r.t.Context(), claim, r.hw.prepare(claim, id))
}

func (r *rig) mustPrepare(claim *resourcev1.ResourceClaim, id string) {
	r.t.Helper()
	if state, err := r.prepare(claim, id); err != nil || state.Extra != "done" {
		r.t.Fatalf("%+v, %v", state, err)
	}
}

func (r *rig) unprepare(claim *resourcev1.ResourceClaim) error {
	return r.Unprepare(r.t.Context(), types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, claim.UID)
}

// list returns the records in short.
func (r *rig) list() string {
	r.t.Helper()
	records, err := r.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	var parts []string
	for _, one := range records {
		part := one.Claim.Name + " " + string(one.Phase)
		if one.Undoing {
			part += " undoing"
		}
		if (one.Phase == Unreadable) != isUnreadable(one.Err, one.Claim.Name) {
			part += fmt.Sprint(" ", one.Err)
		}
		if one.Phase == Unreadable {
			for _, d := range one.Claim.Devices {
				part += " " + d.Name
			}
		}
		parts = append(parts, strings.TrimSpace(part+" "+one.State.ID))
	}
	return strings.Join(parts, ", ")
}

// spoil replaces text in the journal at rest, and opens the store as the next process does.
func (r *rig) spoil(text, by string) {
	r.t.Helper()
	data, _ := r.disk.Data(journalFile)
	if !strings.Contains(string(data), text) {
		r.t.Fatalf("no %q in\n%s", text, data)
	}
	r.disk.Put(journalFile, []byte(strings.ReplaceAll(string(data), text, by)))
	r.open("boot-1")
}

// expect compares the calls of the driver since the last time, and what it has left.
func (r *rig) expect(calls, left string) {
	r.t.Helper()
	if got := r.hw.did(); got != calls {
		r.t.Errorf("the driver's calls were %q, want %q", got, calls)
	}
	if got := r.hw.left(); got != left {
		r.t.Errorf("the hardware has %s, want %s", got, left)
	}
	if err := r.Store.disk.log.Check(); err != nil {
		r.t.Error(err)
	}
}

// nodeConfig is a driver whose devices are files: a device that is prepared twice
// is a file that exists already.
func nodeConfig(dir string) Config[partition] {
	return Config[partition]{
		Dir: filepath.Join(dir, "store"), Driver: driver, BootID: "boot", Claims: &cluster{},
		Unprepare: func(_ context.Context, _ Claim, state partition, phase Phase) error {
			switch phase {
			case Unreadable:
				return errors.New("a record was damaged")
			case Absent:
				return nil // it ended so long ago that its tombstone is gone
			}
			if err := os.Remove(filepath.Join(dir, "gpu", state.ID)); err != nil && (phase == Prepared || !errors.Is(err, fs.ErrNotExist)) {
				return err
			}
			return nil
		},
	}
}
