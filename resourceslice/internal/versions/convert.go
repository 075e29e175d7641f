// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
)

func same(s *resourcev1.ResourceSlice) (*resourcev1.ResourceSlice, error) { return s, nil }

// The versions are different Go types with one wire format. Converting through
// that format keeps fields that a later release adds to both.

func fromV1beta2(s *resourcev1beta2.ResourceSlice) (*resourcev1.ResourceSlice, error) {
	to := &resourcev1.ResourceSlice{ObjectMeta: s.ObjectMeta}
	return to, recode(&s.Spec, &to.Spec)
}

func toV1beta2(s *resourcev1.ResourceSlice) (*resourcev1beta2.ResourceSlice, error) {
	to := &resourcev1beta2.ResourceSlice{ObjectMeta: s.ObjectMeta}
	return to, recode(&s.Spec, &to.Spec)
}

type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface{ Unmarshal([]byte) error }

// recode copies a message into one of another version.
func recode(from marshaler, to unmarshaler) error {
	wire, err := from.Marshal()
	if err != nil {
		return err
	}
	return to.Unmarshal(wire)
}
