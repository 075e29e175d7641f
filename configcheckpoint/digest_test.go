// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"strings"
	"testing"

	"github.com/kubewright/kubewright/configcheckpoint/internal/rollout"
)

// ref returns the reference to a payload of one letter.
func ref(text string) *Ref {
	return &Ref{Digest: DigestOf([]byte(text)), Name: text}
}

// record makes a record: assigned, last known good, previous; "" for none.
func record(assigned, lkg, previous string) rollout.Record {
	r := rollout.Empty()
	for to, text := range map[**rollout.Ref]string{&r.Assigned: assigned, &r.LKG: lkg, &r.Previous: previous} {
		if text != "" {
			core := ref(text).core()
			*to = &core
		}
	}
	return r
}

// TestConstantsOfTheCore: the core and its driver mean the same.
func TestConstantsOfTheCore(t *testing.T) {
	for core, public := range map[rollout.Reason]Reason{
		rollout.DecodeFailed: ReasonDecodeFailed, rollout.ValidationFailed: ReasonValidationFailed, rollout.NotAdmitted: ReasonNotAdmitted,
		rollout.CrashLoop: ReasonCrashLoop, rollout.CheckpointCorrupt: ReasonCheckpointCorrupt,
		rollout.StoreFull: ReasonStoreFull, rollout.StoreReadOnly: ReasonStoreReadOnly, rollout.StoreFailed: ReasonStoreFailed,
	} {
		if Reason(core) != public {
			t.Errorf("%s is %s", core, public)
		}
	}
	for core, public := range map[rollout.Role]Role{
		rollout.Assigned: RoleAssigned, rollout.LastKnownGood: RoleLastKnownGood, rollout.Previous: RolePrevious, rollout.Default: RoleDefault,
	} {
		if Role(core) != public {
			t.Errorf("%s is %s", core, public)
		}
	}
}

func TestDigestText(t *testing.T) {
	d := DigestOf([]byte("x"))
	var back Digest
	if err := back.UnmarshalText([]byte(d.String())); err != nil || back != d {
		t.Errorf("%v came back as %v, %v", d, back, err)
	}
	for _, bad := range []string{"", "..", "../../etc/passwd", d.String()[:63], d.String() + "0", strings.Repeat("g", 64)} {
		if err := back.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if back != d {
		t.Error("an error changed the digest")
	}
}

// A slot whose text is no record has nothing that the store may rely on.
func TestATextThatIsNoRecordIsRefused(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema":"one"}`} {
		if info, err := describe([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, info)
		}
	}
}
