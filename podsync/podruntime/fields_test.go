// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// notFollowed are the types whose fields concern a scheduler or a [VolumePlugin].
func notFollowed(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[corev1.PodAffinity](), reflect.TypeFor[corev1.PodAntiAffinity](), reflect.TypeFor[corev1.TopologySpreadConstraint](),
		reflect.TypeFor[corev1.PodSchedulingGroup]():
		return true
	}
	name, volume := strings.CutSuffix(t.Name(), "VolumeSource")
	return volume && !slices.Contains([]string{"", "EmptyDir", "HostPath", "ConfigMap", "Secret", "DownwardAPI", "Projected"}, name)
}

// TestEachFieldOfAPodHasAnOwner fails if a version of Kubernetes gives pods another field. Then the field
// must be read, or refused by unsupported or podenv, or be one that concerns no node; and it gets its
// place in the table of DESIGN.md and in testdata/fields.txt.
func TestEachFieldOfAPodHasAnOwner(t *testing.T) {
	fields := map[reflect.Type][]string{}
	var follow func(reflect.Type)
	follow = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.PkgPath() != reflect.TypeFor[corev1.Pod]().PkgPath() || fields[typ] != nil || notFollowed(typ) {
			return
		}
		fields[typ] = []string{}
		for f := range typ.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				fields[typ] = append(fields[typ], name)
			}
			follow(f.Type)
		}
	}
	follow(reflect.TypeFor[corev1.PodSpec]())
	var lines []string
	for typ, names := range fields {
		lines = append(lines, typ.Name()+": "+strings.Join(names, " "))
	}
	slices.Sort(lines)
	known, err := os.ReadFile("testdata/fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(strings.TrimSpace(string(known)), "\n"), lines); diff != "" {
		t.Errorf("the fields of a pod (-testdata/fields.txt, +k8s.io/api):\n%s", diff)
	}

	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(design), "\n## The fields of a pod\n")
	table, _, _ = strings.Cut(table, "\n## ")
	words := strings.FieldsFunc(table, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') })
	for _, typ := range []reflect.Type{reflect.TypeFor[corev1.PodSpec](), reflect.TypeFor[corev1.Container](), reflect.TypeFor[corev1.VolumeMount]()} {
		for _, name := range fields[typ] {
			if !slices.Contains(words, name) {
				t.Errorf("DESIGN.md does not say who owns %s of a %s", name, typ.Name())
			}
		}
	}
}
