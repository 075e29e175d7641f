// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	r := record{
		Peer: spec.Peer{
			Identity: "10.0.0.1:80/ü_0a1b2c3d", BinaryVersion: "1.37.0", EmulationVersion: "1.36.0", Priority: -3,
			Attributes: map[string]string{"zone": "a"}, Created: time.Date(2026, 1, 2, 3, 4, 5, 6000000, time.UTC),
		},
		Strategy: "example.com/x", Ack: "3.1", Beat: 7,
	}
	got := records(map[string]string{recordKey(r.Identity): r.encode(), "other": "x"})
	if diff := cmp.Diff(map[string]record{r.Identity: r}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An invalid record is no candidate, and the next leader drops it.
func TestWhatIsNoRecord(t *testing.T) {
	good := record{Peer: spec.Peer{Identity: "a"}}
	for name, tc := range map[string]struct{ key, value string }{
		"empty":              {recordKey("x"), ""},
		"not JSON":           {recordKey("x"), "{"},
		"another type":       {recordKey("x"), `["x"]`},
		"without identity":   {recordKey(""), `{}`},
		"another's key":      {recordKey("x"), `{"id":"y"}`},
		"too long":           {recordKey("x"), `{"id":"x","strategy":"` + strings.Repeat("s", MaxRecordBytes) + `"}`},
		"a number too large": {recordKey("x"), `{"id":"x","priority":3000000000}`},
		"a wrong time":       {recordKey("x"), `{"id":"x","created":"yesterday"}`},
	} {
		annotations := map[string]string{recordKey("a"): good.encode(), tc.key: tc.value}
		if got := records(annotations); len(got) != 1 {
			t.Errorf("%s: %v", name, got)
		}
		b := newBench(t)
		b.see(leaseOf("x", 1, func(l *coordinationv1.Lease) { l.Annotations = annotations }))
		b.reg.dropRecords(0, annotations, func(record) bool { return false })
		if _, ok := annotations[tc.key]; ok || len(annotations) != 1 {
			t.Errorf("%s: the leader keeps %v", name, annotations)
		}
	}
}

func TestACandidateAcceptsOffersToItselfOnly(t *testing.T) {
	for offer, want := range map[string]string{
		pendingOffer{to: "me", id: "1.2"}.encode(): "1.2",
		"1.2 me":     "1.2",
		"1.2 other":  "",
		"1.2 me too": "",
		"1.2 ":       "",
		"1.2":        "",
		" me":        "",
		" ":          "",
		"":           "",
	} {
		b := newBench(t)
		b.see(leaseOf("x", 1, func(l *coordinationv1.Lease) { l.Annotations = map[string]string{offerAnnotation: offer} }))
		if got := b.reg.offered(); got != want {
			t.Errorf("%q: accepts %q, want %q", offer, got, want)
		}
	}
}

// FuzzAnnotations: all annotations of the Lease are read without a
// panic, and a record can only speak for its own identity.
func FuzzAnnotations(f *testing.F) {
	f.Add("a", `{"id":"a","binary":"1.2.3","priority":5}`, "1.1 a")
	f.Add("a", `{"id":"a","attrs":{"x":null}}`, "")
	f.Fuzz(func(t *testing.T, id, value, offer string) {
		annotations := map[string]string{recordKey(id): value, offerAnnotation: offer}
		for got, r := range records(annotations) {
			if got != r.Identity || recordKey(got) != recordKey(id) {
				t.Errorf("a record of %q under the key of %q", got, id)
			}
			for _, s := range []spec.Strategy{oldest{}, newest{}, byPriority{}} {
				if spec.Compare(s, r.Peer, r.Peer, "") != 0 {
					t.Errorf("%s: %+v differs from itself", s.Name(), r)
				}
			}
			if again := records(map[string]string{recordKey(r.Identity): r.encode()}); len(r.encode()) <= MaxRecordBytes && len(again) != 1 {
				t.Errorf("%+v is not read again", r)
			}
		}
		b := newBench(t)
		b.see(leaseOf("x", 1, func(l *coordinationv1.Lease) { l.Annotations = annotations }))
		if got := b.reg.offered(); got != "" && got+" me" != offer {
			t.Errorf("%q is accepted as %q", offer, got)
		}
	})
}
