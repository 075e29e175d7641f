// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/election/internal/spec"
)

// A candidate writes the Lease as it was last observed, with its own changes. The
// resourceVersion makes the write fail if another client was faster. Fields and
// annotations of other clients stay.

// editable returns a copy of the last observed Lease, or one to create.
func (m *machine) editable() *coordinationv1.Lease {
	l := m.lease.DeepCopy()
	if l == nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Lease.Namespace, Name: m.Lease.Name, Labels: m.Labels, OwnerReferences: m.OwnerReferences,
		}}
	}
	if l.Annotations == nil {
		l.Annotations = make(map[string]string)
	}
	return l
}

// stamp sets and records a new renewTime: the wall clock, but never the same time
// twice, because other candidates detect renewals by changes.
func (m *machine) stamp(l *coordinationv1.Lease, wall time.Time) {
	t := metav1.NewMicroTime(wall.Truncate(time.Microsecond))
	if before := l.Spec.RenewTime; before.Equal(&t) {
		t.Time = t.Add(time.Microsecond)
	}
	l.Spec.RenewTime = &t
	m.written = append(m.written[max(0, len(m.written)-maxWritten+1):], t)
}

// leaseFor returns the Lease with a holder whose term begins, or that has no holder.
func (m *machine) leaseFor(holder string, now instant) *coordinationv1.Lease {
	l := m.editable()
	m.stamp(l, now.wall)
	// Not nil: the controller of the API server up to 1.37 needs a holder.
	l.Spec.HolderIdentity = &holder
	l.Spec.AcquireTime = l.Spec.RenewTime.DeepCopy()
	l.Spec.PreferredHolder = nil
	delete(l.Annotations, offerAnnotation)
	delete(l.Annotations, handoverAnnotation)
	delete(l.Annotations, termAnnotation)
	return l
}

// claimedLease returns the Lease that begins a term.
func (m *machine) claimedLease(now instant) *coordinationv1.Lease {
	l := m.leaseFor(m.id, now)
	l.Spec.LeaseDurationSeconds = m.seconds()
	previous := spec.HolderOf(m.lease)
	assigned := previous == m.id && begun(m.lease)
	switch {
	case m.lease == nil:
		l.Spec.LeaseTransitions = ptr.To[int32](0)
	case !assigned || spec.PulseOf(m.lease).SameTerm(m.past): // an assignment is counted already
		l.Spec.LeaseTransitions = ptr.To(spec.NextTransition(spec.TransitionsOf(l)))
	}
	l.Annotations[termAnnotation] = markOf(l)
	if m.Registry.native {
		return l
	}
	l.Spec.Strategy = nil
	m.dropRecords(now.mono, l.Annotations, func(r record) bool {
		// The holder was silent for its whole lease, and better candidates let
		// their turns pass. A live one publishes its record again.
		return previous != "" && previous != m.id && (r.Identity == previous || Compare(m.Strategy, r.Peer, m.asPeer(), "") < 0)
	})
	m.putRecord(now.mono, l.Annotations)
	return l
}

// renewedLease returns the Lease with a new renewTime and the present offer.
func (m *machine) renewedLease(now instant) *coordinationv1.Lease {
	l := m.editable()
	l.Spec.LeaseDurationSeconds = m.seconds()
	m.stamp(l, now.wall)
	if m.Registry.native {
		if m.refuses(spec.PreferredOf(l), now.mono) {
			l.Spec.PreferredHolder = nil
		}
		return l
	}
	delete(l.Annotations, offerAnnotation)
	if m.term.offer != nil {
		l.Annotations[offerAnnotation] = m.term.offer.encode()
	}
	m.dropRecords(now.mono, l.Annotations, func(r record) bool {
		d, ok := m.doubts[r.Identity]
		return ok && r.Since <= d.since
	})
	m.putRecord(now.mono, l.Annotations)
	return l
}

// recordLease returns the Lease with this candidate's record as it should be.
func (m *machine) recordLease(now instant) *coordinationv1.Lease {
	l := m.editable()
	m.putRecord(now.mono, l.Annotations)
	return l
}

// handoverSeconds is the leaseDurationSeconds of a lease that is handed over, until
// its new holder claims it: the time without a leader if the new holder has died.
// client-go's candidates read every two to five seconds.
const handoverSeconds = 5

// handedLease returns the Lease with another candidate as its holder, or released
// if to is empty.
func (m *machine) handedLease(now instant, to string) *coordinationv1.Lease {
	l := m.leaseFor(to, now)
	if to == "" {
		l.Spec.LeaseDurationSeconds = ptr.To[int32](releaseSeconds)
	} else {
		l.Spec.LeaseDurationSeconds = ptr.To(min(*m.seconds(), handoverSeconds))
		l.Spec.LeaseTransitions = ptr.To(spec.NextTransition(spec.TransitionsOf(l)))
		l.Annotations[handoverAnnotation], l.Annotations[termAnnotation] = m.id, markOf(l)
	}
	m.putRecord(now.mono, l.Annotations)
	return l
}

// seconds returns Timing.LeaseDuration in the unit of the API.
func (m *machine) seconds() *int32 {
	return ptr.To(int32(m.Timing.LeaseDuration / time.Second))
}

// tokenOf returns the fencing token of a term that began with this Lease.
func tokenOf(l *coordinationv1.Lease) uint64 {
	n, err := strconv.ParseUint(l.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// publishing is the state of this candidate's own record.
type publishing struct {
	at      time.Duration // when it was last stored
	beat    int           // the last Beat that was stored
	beatAt  time.Duration // when Beat must grow
	retryAt time.Duration // the record is not written before
}

// readRecords updates m.records from the annotations of the Lease.
func (m *machine) readRecords(now time.Duration) {
	var annotations map[string]string
	if m.lease != nil {
		annotations = m.lease.Annotations
		// A leader that uses OnLease has removed the strategy with its claim.
		if !m.Registry.native && m.lease.Spec.Strategy != nil && !m.mine() && spec.HolderOf(m.lease) != "" {
			m.reportMixed()
		}
	}
	if m.records != nil && maps.Equal(annotations, m.annotations) { // true for most renewals
		return
	}
	known, before := m.records, m.annotations
	m.records, m.annotations = records(annotations), annotations
	if m.Registry.native {
		if len(m.records) > 0 {
			m.reportMixed()
		}
		clear(m.records)
		return
	}
	for id, r := range m.records {
		r.Since = known[id].Since
		if key := recordKey(id); before[key] != annotations[key] {
			r.Since = now
		}
		m.records[id] = r
	}
	_, had := known[m.id]
	if _, own := m.records[m.id]; !own && (had || known == nil) {
		m.published.retryAt = max(m.published.retryAt, now+time.Duration(m.random()*float64(publishSpread)))
	}
}

// reportMixed reports that candidates with the other registry exist, once.
func (m *machine) reportMixed() {
	if !m.mixed {
		m.mixed = true
		m.tell(mixedRegistries{})
	}
}

// placed reports whether the Lease has room for a record of this candidate. A full
// Lease has room if the strategy prefers this candidate to one of the records.
// Equal candidates do not displace each other, or a fleet that starts together
// would not come to rest.
func (m *machine) placed() bool {
	if _, own := m.records[m.id]; own || len(m.records) < maxRecords {
		return true
	}
	for _, r := range m.records {
		if prefer(m.Strategy, m.asPeer(), r.Peer) < 0 {
			return true
		}
	}
	return false
}

// wanted returns the record that the Lease should have now, and whether it
// should have one.
func (m *machine) wanted(now time.Duration) (record, bool) {
	if m.Registry.native || m.self.LastResort || m.stopping || now < m.standBackTo {
		return record{}, false
	}
	r := record{Peer: m.asPeer(), Strategy: m.Strategy.Name()}
	r.Beat = m.published.beat
	if now >= m.published.beatAt {
		r.Beat++
	}
	if m.phase == standby {
		r.Ack = m.records[m.id].Ack
	}
	r.Ack = cmp.Or(m.offered(now), r.Ack)
	return r, true
}

// offered returns the id of the offer that this candidate accepts, "" for none.
func (m *machine) offered(now time.Duration) string {
	if m.phase != standby || m.lease == nil || now < m.standBackTo || m.mine() {
		return ""
	}
	id, to, _ := strings.Cut(m.lease.Annotations[offerAnnotation], " ")
	if to != m.id {
		return ""
	}
	return id
}

// publishAt returns when to write or withdraw the record.
func (m *machine) publishAt(now time.Duration) time.Duration {
	if m.Registry.native || m.lease == nil {
		return never
	}
	present, published := m.records[m.id]
	want, wanted := m.wanted(now)
	at := m.published.beatAt
	switch {
	case wanted && !m.placed(), !wanted && !published:
		return never
	case !wanted, published && present.Ack != want.Ack:
		at = now
	case !published:
		at = m.published.at + publishGap
	case present.content() != want.content():
		at = min(at, m.published.at+changeGap)
	}
	return max(at, m.published.retryAt)
}

// publishMove writes or withdraws the record. The request must end before by, when
// the lease can be claimed.
func (m *machine) publishMove(now instant, by time.Duration) move {
	op := OpPublish
	if _, ok := m.wanted(now.mono); !ok {
		op = OpWithdraw
	}
	return move{op: op, object: m.recordLease(now), timeout: min(m.CallTimeout, max(by-now.mono, minCall))}
}

// recordStored updates m.published after a successful write that may have
// contained the record.
func (m *machine) recordStored(now time.Duration) {
	own, ok := m.records[m.id]
	if !ok {
		return
	}
	p := &m.published
	if p.beatAt == 0 || own.Beat != p.beat {
		p.beatAt = now + time.Duration((0.9+0.2*m.random())*float64(recordInterval))
	}
	p.at, p.beat, p.retryAt = now, own.Beat, 0
}

// putRecord sets this candidate's record in annotations, or removes it.
func (m *machine) putRecord(now time.Duration, annotations map[string]string) {
	key := recordKey(m.id)
	if want, ok := m.wanted(now); ok {
		annotations[key] = want.encode()
	} else {
		delete(annotations, key)
	}
}

// dropRecords removes the records of other candidates that are silent or have not
// changed for recordTTL, those that can't be read, and the worst of more than
// maxRecords. Only a leader, or a candidate that claims the lease, drops records.
func (m *machine) dropRecords(now time.Duration, annotations map[string]string, silent func(record) bool) {
	keep := map[string]bool{recordKey(m.id): true}
	byRank := func(a, b record) int { return Compare(m.Strategy, a.Peer, b.Peer, m.id) }
	for _, r := range slices.SortedFunc(maps.Values(m.records), byRank) {
		if len(keep) < maxRecords && !silent(r) && now-r.Since <= recordTTL {
			keep[recordKey(r.Identity)] = true
		}
	}
	maps.DeleteFunc(annotations, func(key, _ string) bool { return strings.HasPrefix(key, recordPrefix) && !keep[key] })
}

// The annotations of a Lease. Records and offers belong to the registry OnLease.
const (
	// recordPrefix and a digest of the identity are the key of a record.
	recordPrefix = "candidate.election." + spec.Domain + "/"
	// offerAnnotation is the offer of the leader to another candidate.
	offerAnnotation = "election." + spec.Domain + "/offer"
	// handoverAnnotation names the leader that handed the lease to its holder, after
	// its work had returned. Without it a holder that was written over another one
	// waits until that one must have stopped.
	handoverAnnotation = "election." + spec.Domain + "/handover"
	// termAnnotation names the holder and its term. The claim and the hand-over write
	// it. An edit that names another holder leaves it behind, so a restarted process
	// with ExclusiveIdentity tells its own lease from one that it was given by hand.
	termAnnotation = "election." + spec.Domain + "/term"
)

const (
	// maxRecords is the largest number of records on a Lease.
	maxRecords = 16
	// maxRecordBytes is the size of the largest record that is read.
	maxRecordBytes = 1024
	// recordInterval is the interval at which a record shows that its candidate is
	// alive. Only the removal of old records depends on it.
	recordInterval = 10 * time.Minute
	// recordTTL is the time after which the leader drops a record that has not
	// changed.
	recordTTL = 3*recordInterval + time.Minute
)

// record describes a candidate on the Lease. The names of its JSON form are short
// because every event of the Lease has sixteen of them.
type record struct {
	Peer
	Strategy string `json:"strategy,omitempty"`
	Ack      string `json:"ack,omitempty"`  // of the offer that is accepted
	Beat     int    `json:"beat,omitempty"` // grows every recordInterval

	// Since is when this state of the record was first observed.
	Since time.Duration `json:"-"`
}

// content returns the record without its signs of life, for comparison.
func (r record) content() string {
	r.Ack, r.Beat = "", 0
	return r.encode()
}

func (r record) encode() string {
	raw, _ := json.Marshal(r) // never fails: strings, numbers, and a year below 10,000
	return string(raw)
}

// recordKey returns the key of the annotation of an identity. It contains a digest,
// because an identity may be too long for a key or contain invalid characters.
func recordKey(id string) string {
	sum := sha256.Sum256([]byte(id))
	return recordPrefix + hex.EncodeToString(sum[:8])
}

// records returns the records among annotations by identity. It ignores values that
// are invalid or under the key of another identity.
func records(annotations map[string]string) map[string]record {
	found := make(map[string]record)
	for key, value := range annotations {
		if !strings.HasPrefix(key, recordPrefix) || len(value) > maxRecordBytes {
			continue
		}
		var r record
		if json.Unmarshal([]byte(value), &r) == nil && r.Identity != "" && recordKey(r.Identity) == key {
			found[r.Identity] = r
		}
	}
	return found
}
