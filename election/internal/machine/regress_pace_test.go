// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// Something undoes the offer that a renewal contains, or its removal. An offer that the
// Lease did not show made a renewal due at once, about a hundred times a second.
func TestAnOfferThatIsUndoneCausesNoRenewals(t *testing.T) {
	strip := func(l *coordinationv1.Lease) { delete(l.Annotations, offerAnnotation) }
	for name, tc := range map[string]struct {
		webhook func(*coordinationv1.Lease) // alters what is written
		client  func(*coordinationv1.Lease) // writes after each renewal; may be nil
	}{
		"by a webhook":                {webhook: strip},
		"by another client":           {webhook: func(*coordinationv1.Lease) {}, client: strip},
		"by a webhook that offers it": {webhook: func(l *coordinationv1.Lease) { l.Annotations[offerAnnotation] = "1 z" }},
	} {
		b := newBench(t)
		b.lead()
		version := 10
		stored := func(l *coordinationv1.Lease) *coordinationv1.Lease {
			version++
			return store(l, strconv.Itoa(version))
		}
		better := stored(b.lease)
		better.Annotations[recordKey("y")] = record{Peer: spec.Peer{Identity: "y", Priority: 9}, Strategy: b.Strategy.Name()}.encode()
		b.see(better)
		var renewals []time.Duration
		for b.now < 2*minTenure {
			s := b.next()
			if s.Op == "" {
				b.now = s.Wake
				continue
			}
			renewals = append(renewals, b.now)
			b.now += 10 * time.Millisecond
			l := stored(s.Object)
			tc.webhook(l)
			b.answer(s.Op, l, nil)
			if tc.client != nil {
				l = stored(l)
				tc.client(l)
				b.see(l)
			}
		}
		if n := len(renewals); n < 19 || n > 24 { // every three seconds, and one for each offer and its end
			t.Errorf("%s: %d renewals in a minute: %v", name, n, renewals)
		}
		if !slices.ContainsFunc(renewals, func(at time.Duration) bool { return at == minTenure }) {
			t.Errorf("%s: the offer waited for a renewal: %v", name, renewals)
		}
	}
}
