// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package claimstatus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/resourceslice/claimstatus"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const driver = "nic.example.com"

// claim has two devices of the driver, of which the second is a share, and one
// of another driver.
func claim() *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "net"},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "nic", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic"}}}}},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "nic", Driver: driver, Pool: "n1", Device: "port-0", BindingConditions: []string{"attached", "configured"}, BindingFailureConditions: []string{"broken", "gone"}},
			{Request: "nic", Driver: driver, Pool: "n1", Device: "port-1", ShareID: new(types.UID("6f0e1c8e-2f1d-4a77-9f0e-111111111111"))},
			{Request: "nic", Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0"},
		}}}},
	}
}

// rig is an API server with the claim, and a Writer.
type rig struct {
	*testing.T
	s *apitest.Server
	w *claimstatus.Writer
}

func bubble(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		s.Put(claim())
		r := &rig{T: t, s: s}
		r.w = r.writer(driver, "")
		test(r)
	})
}

func (r *rig) writer(driver, name string) *claimstatus.Writer {
	w, err := claimstatus.New(claimstatus.Config{Client: r.s.Client(apitest.User{}).ResourceV1(), Driver: driver, Name: name})
	if err != nil {
		r.Fatal(err)
	}
	return w
}

func (r *rig) get() *resourcev1.ResourceClaim {
	r.Helper()
	c, err := r.s.Client(apitest.User{}).ResourceV1().ResourceClaims("default").Get(r.Context(), "net", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *rig) write(devices ...resourcev1.AllocatedDeviceStatus) {
	r.Helper()
	if _, err := r.w.Write(r.Context(), r.get(), devices...); err != nil {
		r.Fatal(err)
	}
}

// expect checks the status, as device:conditions, and the number of writes since
// the last call.
func (r *rig) expect(what, want string, writes int) {
	r.Helper()
	var all []string
	for _, d := range r.get().Status.Devices {
		text := d.Device + ":"
		for _, c := range d.Conditions {
			text += fmt.Sprintf("%s=%s@%s,", c.Type, c.Status, c.LastTransitionTime.UTC().Format("15:04"))
		}
		all = append(all, text)
	}
	if got := strings.Join(all, " "); got != want {
		r.Errorf("%s: status %s, want %s", what, got, want)
	}
	if n := len(r.s.Requests(apitest.Match{Verb: "patch,update", Resource: "resourceclaims/*"})); n != writes {
		r.Errorf("%s: %d writes, want %d", what, n, writes)
	}
	r.s.ResetJournal()
}

func result(i int) *resourcev1.DeviceRequestAllocationResult {
	return &claim().Status.Allocation.Devices.Results[i]
}

func TestAConditionKeepsItsTimeUntilItsStatusChanges(t *testing.T) {
	bubble(t, func(r *rig) {
		bound := claimstatus.Bound(result(0), "Attached", "up")
		r.write(bound)
		r.expect("the first", "port-0:attached=True@00:00,configured=True@00:00,", 1)
		time.Sleep(time.Hour)
		r.write(bound)
		r.expect("the same", "port-0:attached=True@00:00,configured=True@00:00,", 0)
		bound.Conditions[0].Message = "up at 100 Gbit/s"
		r.write(bound)
		r.expect("another message", "port-0:attached=True@00:00,configured=True@00:00,", 1)
		bound.Conditions[0].Status = metav1.ConditionFalse
		r.write(bound)
		r.expect("another status", "port-0:attached=False@01:00,configured=True@00:00,", 1)
		bound.Conditions[1].LastTransitionTime = metav1.NewTime(time.Now().Add(30 * time.Minute))
		r.write(bound)
		r.expect("a time of the caller", "port-0:attached=False@01:00,configured=True@01:30,", 1)
		r.write(claimstatus.BindingFailed(result(0), "Broken", "no link"))
		r.expect("a failure", "port-0:broken=True@01:00,", 1)
	})
}

// TestDataIsComparedAsAValue: the API server stores an object with sorted keys, and some
// numbers in another form.
func TestDataIsComparedAsAValue(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second string
		writes        int
	}{
		"a struct":              {`{"vlan":7,"bridge":"b0"}`, `{"vlan":7,"bridge":"b0"}`, 1},
		"spaces":                {`{"bridge": "b0"}`, `{ "bridge" : "b0" }`, 1},
		"a list":                {`{"all":[{"b":1,"a":2.50}]}`, `{"all":[{"b":1,"a":2.5}]}`, 1},
		"another value":         {`{"vlan":7,"bridge":"b0"}`, `{"vlan":8,"bridge":"b0"}`, 2},
		"another order":         {`{"all":[1,2]}`, `{"all":[2,1]}`, 2},
		"another large number":  {`{"mac":9007199254740992}`, `{"mac":9007199254740993}`, 2},
		"one field less":        {`{"vlan":7,"bridge":"b0"}`, `{"vlan":7}`, 2},
		"a text, then a number": {`{"vlan":"7"}`, `{"vlan":7}`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				for _, data := range []string{tc.first, tc.second, tc.second} {
					status := claimstatus.Bound(&claim().Status.Allocation.Devices.Results[0], "Ready", "")
					status.Data = &runtime.RawExtension{Raw: []byte(data)}
					r.write(status)
				}
				if n := len(r.s.Requests(apitest.Match{Verb: "patch", Resource: "resourceclaims/*"})); n != tc.writes {
					t.Errorf("%d writes, want %d", n, tc.writes)
				}
			})
		})
	}
}

func TestAStatusThatIsLeftOutIsRemoved(t *testing.T) {
	bubble(t, func(r *rig) {
		shared := claimstatus.Bound(result(1), "Attached", "up")
		shared.Data = &runtime.RawExtension{Raw: []byte(`{"queue":4}`)}
		shared.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"10.0.0.7/24"}}
		r.write(claimstatus.Bound(result(0), "Attached", "up"), shared)
		r.expect("two", "port-0:attached=True@00:00,configured=True@00:00, port-1:", 1)
		if got := r.get().Status.Devices[1]; got.NetworkData == nil || got.NetworkData.InterfaceName != "net1" || string(got.Data.Raw) != `{"queue":4}` || *got.ShareID != string(*result(1).ShareID) {
			r.Errorf("stored %+v", got)
		}
		r.write(shared)
		r.expect("one", "port-1:", 1)
		r.write(shared)
		r.expect("the same", "port-1:", 0)
		r.write()
		r.expect("none", "", 1)
		r.write()
		r.expect("none again", "", 0)
	})
}

// TestDriversShareAClaim: the status of another driver, and one of another
// program of this driver, stay.
func TestDriversShareAClaim(t *testing.T) {
	bubble(t, func(r *rig) {
		if _, err := r.writer("gpu.example.com", "").Write(r.Context(), r.get(), claimstatus.Bound(result(2), "Ready", "")); err != nil {
			r.Fatal(err)
		}
		if _, err := r.writer(driver, "second").Write(r.Context(), r.get(), claimstatus.Bound(result(1), "Ready", "")); err != nil {
			r.Fatal(err)
		}
		r.write(claimstatus.Bound(result(0), "Attached", ""))
		r.expect("three", "gpu-0: port-1: port-0:attached=True@00:00,configured=True@00:00,", 3)
		r.write()
		r.expect("two", "gpu-0: port-1:", 1)
	})
}

// TestTwoProgramsShareADevice: one sets the binding conditions, the other the address. Each
// repeats its write, which costs nothing, and neither removes what the other wrote.
func TestTwoProgramsShareADevice(t *testing.T) {
	bubble(t, func(r *rig) {
		binder, network := r.w, r.writer(driver, "network")
		address := claimstatus.Bound(result(0), "", "")
		address.Conditions = nil
		address.NetworkData = &resourcev1.NetworkDeviceData{InterfaceName: "net1", IPs: []string{"10.0.0.7/24"}}
		write := func(w *claimstatus.Writer, d resourcev1.AllocatedDeviceStatus) {
			r.Helper()
			if _, err := w.Write(r.Context(), r.get(), d); err != nil {
				r.Fatal(err)
			}
		}
		both := "port-0:attached=True@00:00,configured=True@00:00,"
		bound := claimstatus.Bound(result(0), "Attached", "up")
		write(binder, bound)
		write(network, address)
		r.expect("both", both, 2)
		for range 3 {
			time.Sleep(time.Minute)
			write(binder, bound)
			write(network, address)
		}
		r.expect("the same again", both, 0)
		if n := r.get().Status.Devices[0].NetworkData; n == nil || n.IPs[0] != "10.0.0.7/24" {
			r.Errorf("network data %+v", n)
		}
		address.NetworkData.IPs = nil
		write(network, address)
		r.expect("less of the own", both, 1)
		write(network, address)
		r.expect("the same", both, 0)
		c := r.get()
		c.ManagedFields = nil // as from an informer that strips them
		if _, err := binder.Write(r.Context(), c, bound); err != nil {
			r.Fatal(err)
		}
		r.expect("without managed fields", both, 1)
		if n := r.get().Status.Devices[0].NetworkData; n == nil || n.InterfaceName != "net1" || n.IPs != nil {
			r.Errorf("network data %+v", n)
		}
		if _, err := binder.Write(r.Context(), r.get()); err != nil {
			r.Fatal(err)
		}
		r.expect("one leaves", "port-0:", 1)
	})
}

// lineSink collects log messages.
type lineSink []string

func (s *lineSink) Init(klog.RuntimeInfo)               {}
func (s *lineSink) Enabled(level int) bool              { return level == 0 }
func (s *lineSink) Info(_ int, msg string, _ ...any)    { *s = append(*s, msg) }
func (s *lineSink) Error(_ error, msg string, _ ...any) { *s = append(*s, msg) }
func (s *lineSink) WithValues(...any) klog.LogSink      { return s }
func (s *lineSink) WithName(string) klog.LogSink        { return s }

// TestAWriteThatTakesFromAnotherProgramIsLogged: two names that write one condition, and
// one name for two programs.
func TestAWriteThatTakesFromAnotherProgramIsLogged(t *testing.T) {
	bubble(t, func(r *rig) {
		var lines lineSink
		logger := klog.New(&lines)
		write := func(w *claimstatus.Writer, want int, d ...resourcev1.AllocatedDeviceStatus) {
			r.Helper()
			lines = nil
			if _, err := w.Write(klog.NewContext(r.Context(), logger), r.get(), d...); err != nil {
				r.Fatal(err)
			}
			if len(lines) != want {
				r.Errorf("logged %q, want %d lines", lines, want)
			}
		}
		bound := claimstatus.Bound(result(0), "Attached", "up")
		write(r.w, 0, bound)
		write(r.w, 0) // the device is unprepared
		write(r.w, 0, bound)
		port := bound
		port.Conditions = []metav1.Condition{{Type: "Link", Status: metav1.ConditionTrue, Reason: "Up"}}
		write(r.writer(driver, ""), 1, port) // the same name, for another purpose
		write(r.w, 0, claimstatus.BindingFailed(result(0), "Broken", ""))
		write(r.w, 0, bound)
		other := claimstatus.Bound(result(0), "Checked", "")
		write(r.writer(driver, "second"), 1, other)
		write(r.writer(driver, "second"), 0, other)
	})
}

// TestAConditionOfTwoProgramsStaysUntilTheOtherOneWritesIt: without the reason, which only
// the second program owns, the API server would refuse the rest of the condition.
func TestAConditionOfTwoProgramsStaysUntilTheOtherOneWritesIt(t *testing.T) {
	bubble(t, func(r *rig) {
		first, second := r.w, r.writer(driver, "second")
		write := func(w *claimstatus.Writer, devices ...resourcev1.AllocatedDeviceStatus) {
			r.Helper()
			if _, err := w.Write(r.Context(), r.get(), devices...); err != nil {
				r.Fatal(err)
			}
		}
		condition := func(typ, reason string) resourcev1.AllocatedDeviceStatus {
			d := claimstatus.Bound(result(0), "", "")
			d.Conditions = []metav1.Condition{{Type: typ, Status: metav1.ConditionTrue, Reason: reason}}
			return d
		}
		reason := func(want string) {
			r.Helper()
			if c := r.get().Status.Devices[0].Conditions[0]; c.Reason != want {
				r.Errorf("reason %s, want %s", c.Reason, want)
			}
		}
		write(first, condition("ready", "First"))
		overwriting := condition("ready", "Second")
		overwriting.Conditions = append(overwriting.Conditions, metav1.Condition{Type: "link", Status: metav1.ConditionTrue, Reason: "Up"})
		overwriting.Data = &runtime.RawExtension{Raw: []byte(`{"queue":4}`)}
		write(second, overwriting)
		r.expect("overwritten", "port-0:ready=True@00:00,link=True@00:00,", 2)
		write(second)
		r.expect("withdrawn", "port-0:ready=True@00:00,", 1)
		reason("Second")
		if data := r.get().Status.Devices[0].Data; data != nil {
			r.Errorf("data %s", data.Raw)
		}
		write(second)
		write(second, condition("ready", "Second"))
		r.expect("nothing else to withdraw", "port-0:ready=True@00:00,", 0)
		write(first, condition("ready", "First"))
		write(second)
		r.expect("given back", "port-0:ready=True@00:00,", 2)
		reason("First")
		write(first)
		r.expect("the last one leaves", "", 1)

		write(first, condition("ready", "First"))
		write(second, condition("ready", "Second"))
		write(first)
		r.expect("the first one leaves", "port-0:ready=True@00:00,", 3)
		write(second)
		r.expect("the second one leaves", "", 1)
	})
}

func TestAnAddressNeedsItsPrefix(t *testing.T) {
	bubble(t, func(r *rig) {
		for ip, ok := range map[string]bool{"10.0.0.7": false, "10.0.0.07/24": false, "2001:db8::1": false, "10.0.0.7/24": true, "2001:db8::1/64": true} {
			d := claimstatus.Bound(result(0), "Attached", "")
			d.NetworkData = &resourcev1.NetworkDeviceData{IPs: []string{ip}}
			if _, err := r.w.Write(r.Context(), r.get(), d); (err == nil) != ok {
				r.Errorf("%s: %v", ip, err)
			}
		}
	})
}

func TestOnlyAllocatedDevicesGetAStatus(t *testing.T) {
	bubble(t, func(r *rig) {
		unshared := claimstatus.Bound(result(1), "Ready", "")
		unshared.ShareID = nil
		other := claimstatus.Bound(result(0), "Ready", "")
		other.Pool = "n2"
		share := claimstatus.Bound(result(0), "Ready", "")
		share.ShareID = new(string(*result(1).ShareID))
		for name, d := range map[string]resourcev1.AllocatedDeviceStatus{
			"another driver's": claimstatus.Bound(result(2), "Ready", ""), "without its share": unshared, "of another pool": other, "with a share": share,
		} {
			if _, err := r.w.Write(r.Context(), r.get(), d); !errors.Is(err, claimstatus.ErrNotAllocated) {
				r.Errorf("%s: %v", name, err)
			}
		}
		c := r.get()
		c.Status.Allocation = nil
		if _, err := r.w.Write(r.Context(), c, claimstatus.Bound(result(0), "Ready", "")); !errors.Is(err, claimstatus.ErrNotAllocated) {
			r.Errorf("a claim without allocation: %v", err)
		}
		r.expect("nothing", "", 0)
	})
}

func TestAnotherClaimOfThatNameGetsNoStatus(t *testing.T) {
	bubble(t, func(r *rig) {
		old := r.get()
		apitest.Remove[*resourcev1.ResourceClaim](r.s, "default", "net")
		if _, err := r.w.Write(r.Context(), old, claimstatus.Bound(result(0), "Ready", "")); !apierrors.IsNotFound(err) {
			r.Errorf("a claim that is gone: %v", err)
		}
		r.s.Put(claim())
		if _, err := r.w.Write(r.Context(), old, claimstatus.Bound(result(0), "Ready", "")); !errors.Is(err, claimstatus.ErrNotAllocated) {
			r.Errorf("another claim: %v", err)
		}
		if n := len(r.get().Status.Devices); n != 0 {
			r.Errorf("%d devices have a status", n)
		}
	})
}

func TestADroppedStatusIsAnError(t *testing.T) {
	bubble(t, func(r *rig) {
		c := r.get()
		answer := claim()
		answer.UID = c.UID
		answer.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}
		body, err := json.Marshal(answer)
		if err != nil {
			r.Fatal(err)
		}
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch"}, Answer: func(apitest.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body))}, nil
		}})
		if _, err := r.w.Write(r.Context(), c, claimstatus.Bound(result(0), "Ready", "")); !errors.Is(err, claimstatus.ErrDropped) {
			r.Errorf("error %v", err)
		}
	})
}

// An answer that a proxy makes up shows neither that the status was written nor that it was
// dropped.
func TestAnEmptyAnswerIsAnError(t *testing.T) {
	bubble(t, func(r *rig) {
		r.write(claimstatus.Bound(result(0), "Ready", ""))
		c := r.get()
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch"}, Answer: func(apitest.Request) (*http.Response, error) {
			body := io.NopCloser(strings.NewReader(`{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1"}`))
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
		}})
		if stored, err := r.w.Write(r.Context(), c); err == nil {
			r.Errorf("the status counts as removed: %+v", stored)
		}
		if _, err := r.w.Write(r.Context(), c, claimstatus.Bound(result(0), "Later", "")); err == nil || errors.Is(err, claimstatus.ErrDropped) {
			r.Errorf("error %v", err)
		}
	})
}

func TestWriteEndsWithItsTimeout(t *testing.T) {
	bubble(t, func(r *rig) {
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "patch"}, Hang: true})
		begin := time.Now()
		_, err := r.w.Write(r.Context(), r.get(), claimstatus.Bound(result(0), "Ready", ""))
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != claimstatus.DefaultCallTimeout {
			r.Errorf("after %v: %v", took, err)
		}
	})
}

func TestNewNamesEveryInvalidField(t *testing.T) {
	_, err := claimstatus.New(claimstatus.Config{CallTimeout: -1})
	for _, name := range []string{"Client", "Driver", "CallTimeout"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v does not name %s", err, name)
		}
	}
}
