// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package election

import "time"

// nextStandby is what a candidate does that has no work running.
func (m *machine) nextStandby(now instant) step {
	if m.giving != nil {
		if s, more := m.nextGiving(now); more {
			return s
		}
	}
	if m.stopping {
		return m.nextStopping(now)
	}
	if s := m.nextReading(now.mono); s.op != "" || !m.known {
		return s
	}
	if now.mono < m.retryAt {
		return step{wake: m.retryAt}
	}
	claim, publish := m.claimAt(), m.publishAt(now.mono)
	switch {
	case now.mono >= claim:
		return step{move: move{op: OpClaim, lease: m.claimedLease(now), timeout: m.callTimeout}}
	case now.mono >= publish:
		return step{move: m.publishMove(now, claim)}
	}
	return step{wake: min(claim, publish, m.nextRead())}
}

// nextReading reads the Lease where that is called for.
func (m *machine) nextReading(now time.Duration) step {
	due := m.reread || now >= m.nextRead()
	if due && now >= m.retryAt {
		return step{move: move{op: OpRead, timeout: m.callTimeout}}
	}
	if due {
		return step{wake: m.retryAt}
	}
	return step{wake: m.nextRead()}
}

// nextRead returns when the Lease is to be read because nobody watches it.
func (m *machine) nextRead() time.Duration {
	if m.watching() {
		return never
	}
	return m.readAt
}

// watching reports whether the Lease is to be watched, and can be. Observers
// don't watch.
func (m *machine) watching() bool {
	return m.known && !m.polling && (m.phase != standby || !m.observer())
}

// observer reports whether there is no place for a record of this candidate.
func (m *machine) observer() bool {
	return !m.native && m.known && m.lease != nil && !m.self.LastResort && !m.stands().place
}

// readInterval draws when to read again what nobody watches.
func (m *machine) readInterval() time.Duration {
	if m.polling && !m.observer() {
		return m.timing.RenewInterval
	}
	return time.Duration((0.5 + m.random()) * 2 * float64(m.timing.LeaseDuration))
}

// claimAt returns when to claim the lease: when it is free by all that was
// seen, and those who come before this candidate have had their time.
func (m *machine) claimAt() time.Duration {
	switch {
	case m.phase != standby || !m.known || m.stopping:
		return never
	case m.mine():
		// It was handed to us, or a controller has chosen us; then one who led
		// before may not know yet.
		return m.base
	}
	at := m.freeAt()
	if m.native {
		at += m.fallback + time.Duration(m.draw*float64(maxRank*stagger))
	} else {
		at += m.turn()
	}
	if holderOf(m.lease) != "" && !m.watching() && m.lastRead < at {
		return never // look before
	}
	return at
}

// turn returns how long this candidate leaves to better ones.
func (m *machine) turn() time.Duration {
	last := time.Duration((maxRank - m.draw) * float64(stagger))
	if m.self.LastResort || m.pulse < m.standBackTo || m.observer() {
		return last
	}
	if r := m.stands().rank; r < maxRank {
		return time.Duration(r) * stagger
	}
	return last
}

// others returns the candidates with records, without this one and the given
// one, and whether the strategy that holds for all of them is ours.
func (m *machine) others(except string) (peers []Peer, known bool) {
	ballots := []ballot{{Peer: m.asPeer(), strategy: m.strategy.Name()}}
	for id, r := range m.records {
		if id != m.id && id != except {
			peers = append(peers, r.peer())
			ballots = append(ballots, r.ballot())
		}
	}
	name, _ := chosenStrategy(ballots)
	return peers, name == m.strategy.Name()
}

// asPeer returns this candidate as the others see it.
func (m *machine) asPeer() Peer {
	p := m.self
	p.Identity, p.Created = m.id, m.created
	return p
}

// nextGiving gives the lease away; more is false when there is nothing left to
// do about that.
func (m *machine) nextGiving(now instant) (s step, more bool) {
	switch {
	case m.stopping && now.mono >= m.stopBy, m.known && !m.reread && !sameTerm(pulseIn(m.lease), m.giving.pulse):
		m.giving = nil
		return step{}, false
	case now.mono < m.retryAt:
		return step{wake: min(m.retryAt, m.stopLimit())}, true
	case m.reread:
		return step{move: move{op: OpRead, timeout: m.stopTimeout(now.mono)}}, true
	}
	to := m.giving.to
	if now.mono >= m.giving.until {
		to = "" // that was long ago
	}
	return step{move: move{op: OpHandOver, lease: m.givenLease(now, to), timeout: m.stopTimeout(now.mono)}}, true
}

// nextStopping releases a lease that was given to this candidate meanwhile,
// withdraws the record and ends.
func (m *machine) nextStopping(now instant) step {
	if m.mine() && now.mono >= m.base && now.mono < m.stopBy {
		m.giving = &giving{pulse: pulseIn(m.lease)}
		if s, more := m.nextGiving(now); more {
			return s
		}
	}
	_, published := m.records[m.id]
	if m.native || !published || m.withdrawals >= 3 || now.mono >= m.stopBy {
		m.phase = finished
		return step{}
	}
	if now.mono < m.retryAt {
		return step{wake: min(m.retryAt, m.stopBy)}
	}
	return step{move: m.withdrawMove(m.stopTimeout(now.mono))}
}

func (m *machine) stopLimit() time.Duration {
	if m.stopping {
		return m.stopBy
	}
	return never
}

// stopTimeout is the deadline of a request of a candidate that may be ending.
func (m *machine) stopTimeout(now time.Duration) time.Duration {
	return max(time.Millisecond, min(m.callTimeout, m.stopLimit()-now))
}
