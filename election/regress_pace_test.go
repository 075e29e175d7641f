// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/requests"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// renew has the Lease renewed every ten seconds by a holder that is no candidate.
func (r *rig) renew(total time.Duration) {
	go func() {
		for range total/(10*time.Second) - 1 {
			time.Sleep(10 * time.Second)
			r.edit(func(l *coordinationv1.Lease) { l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now())) })
		}
	}()
}

// Failures that were repeated without a pause, or in silence.

// A webhook that is down fails writes, and reads go well: the read between two
// writes does not restart their backoff.
func TestWritesThatFailWhileReadsDoNot(t *testing.T) {
	for name, verbs := range map[string]string{"all": "update,create,patch", "update": "update", "create": "create"} {
		for fname, f := range map[string]apitest.Fault{"500": {Status: statuserr.InternalError("webhook")}, "reset": {Err: apitest.ErrConnReset}, "429": {Status: statuserr.TooManyRequests(0)}} {
			inRig(t, func(r *rig) {
				f.Match = apitest.Match{Verb: verbs}
				r.server.Inject(f)
				if verbs != "create" {
					r.put("x")
				}
				if verbs == "update" {
					r.renew(20 * time.Minute)
				}
				r.start("a")
				r.sleep(20 * time.Minute)
				// A write and a read every 3.75 s.
				if n := len(r.server.Requests(apitest.Match{})); n > 740 {
					t.Errorf("%s %s: %d requests", name, fname, n)
				}
			})
		}
	}
}

// The answer to every watch is 410, although it starts from the version just read.
func TestWatchThatHasAlwaysLostItsPlace(t *testing.T) {
	for _, native := range []bool{false, true} {
		inRig(t, func(r *rig) {
			r.native = native
			heal := r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Status: statuserr.Gone()})
			a := r.start("a")
			r.sleep(20 * time.Minute)
			if n := len(r.server.Requests(apitest.Match{})); n > map[bool]int{false: 440, true: 880}[native] { // renewals, and polls
				t.Errorf("native %v: %d requests in 20 minutes", native, n)
			}
			if len(a.errors()) == 0 {
				t.Error("nobody was told")
			}
			heal()
			r.sleep(10 * time.Minute)
			if n, want := requests.OpenWatches(r.server, apitest.Match{}), map[bool]int{false: 1, true: 2}[native]; n != want {
				t.Errorf("native %v: %d watches afterwards, want %d", native, n, want)
			}
		})
	}
}

// A transport says that a request was cancelled, and it was not this package that
// did it.
func TestCanceledByNobody(t *testing.T) {
	for _, verb := range []string{"get", "watch", "create,update,patch", "create,update,patch,get,watch"} {
		for _, native := range []bool{false, true} {
			inRig(t, func(r *rig) {
				r.native = native
				r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: verb}, Err: context.Canceled})
				a := r.start("a")
				r.sleep(10 * time.Minute)
				if n := len(r.server.Requests(apitest.Match{})); n > 700 {
					t.Errorf("%s, native %v: %d requests in ten minutes", verb, native, n)
				}
				if len(a.errors()) == 0 {
					t.Errorf("%s, native %v: nobody was told", verb, native)
				}
			})
		}
	}
}

// A record is answered by success, and something leaves it out.
func TestRecordThatIsNotStored(t *testing.T) {
	inRig(t, func(r *rig) {
		r.put("x")
		r.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "update"}, Answer: func(apitest.Request) (*http.Response, error) {
			l := r.lease()
			l.APIVersion, l.Kind = coordinationv1.SchemeGroupVersion.String(), "Lease"
			raw, err := json.Marshal(l)
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(raw))}, err
		}})
		r.renew(time.Hour)
		r.start("a")
		r.sleep(time.Hour)
		if n := len(r.server.Requests(apitest.Match{})); n > 400 {
			t.Errorf("%d requests in an hour", n)
		}
	})
}

// Nothing can be created in a namespace that does not exist.
func TestMissingNamespaceIsSaid(t *testing.T) {
	for _, native := range []bool{false, true} {
		inRig(t, func(r *rig) {
			r.native = native
			a := r.start("a", func(cfg *Config) { cfg.Lease.Namespace = "nowhere" })
			r.sleep(time.Minute)
			found := false
			for _, err := range a.errors() {
				found = found || apierrors.IsNotFound(err) && strings.HasPrefix(err.Error(), "election: claim: ")
			}
			if !found {
				t.Errorf("native %v: told %v", native, a.errors())
			}
		})
	}
}
