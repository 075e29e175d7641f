// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import "encoding/json"

// An inspection is the decoding and validation of a payload that does not run.
// While it is under way it is the store's note, so that the next process knows
// that this one ended during it. The note is not flushed: it has to survive
// os.Exit, a stack overflow or the end of memory, not a power cut.
type inspection struct {
	Digest Digest `json:"digest"`
	Build  string `json:"build,omitempty"`
	// Deaths counts the processes that ended during an inspection of the payload.
	Deaths int `json:"deaths,omitempty"`
	// Over says that the process lived on, and was asked to stop: the note only keeps
	// the deaths before it.
	Over bool `json:"over,omitempty"`
}

// interrupted returns the inspection during which the process before this one
// ended; zero if note is none.
func interrupted(note []byte) inspection {
	var i inspection
	if note == nil || json.Unmarshal(note, &i) != nil {
		return inspection{}
	}
	if !i.Over {
		i.Deaths++
	}
	i.Over = false
	return i
}

// note returns i as the store keeps it.
func (i inspection) note() []byte {
	text, _ := json.Marshal(i) // nothing in it can fail
	return text
}

// again returns the inspection of d by build that follows i.
func (i inspection) again(d Digest, build string) inspection {
	if i.Digest == d && i.Build == build {
		return i
	}
	return inspection{Digest: d, Build: build}
}
