// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
)

// identities run the example: a ServiceAccount with the manifests, or the
// kubelet's credentials.
var identities = map[string]apitest.User{
	"ServiceAccount": apitest.ServiceAccountUser("kubewright", "virtual-node"),
	"Node":           apitest.NodeUser("n1"),
}

func TestDevicesOfAFile(t *testing.T) {
	sample, err := os.ReadFile("devices.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, user := range identities {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, "rbac/resourceslice.yaml")
			s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			path := filepath.Join(t.TempDir(), "devices.yaml")
			write := func(content string) {
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			taints := func() (tainted int, all int) {
				for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
					for _, d := range slice.Spec.Devices {
						all++
						if len(d.Taints) > 0 {
							tainted++
						}
					}
				}
				return tainted, all
			}
			program := startProgram(t, "--kubeconfig", kubeconfig(t, s, user), "--node-name", "n1", "--file", path, "--poll", "10ms", "--withdraw")
			eventually(t, s, "the program to say that there is no file", func() bool {
				return strings.Contains(program.Output(), "does not exist")
			})
			write(string(sample))
			eventually(t, s, "the devices of the sample", func() bool {
				tainted, all := taints()
				return all == 5 && tainted == 1
			})
			write("driver: gpu.example.com\ndevices: [{name: Not_A_Label}]")
			eventually(t, s, "the program to name what is wrong", func() bool {
				return strings.Contains(program.Output(), `devices[0].name: Invalid value: "Not_A_Label"`)
			})
			write("driver: gpu.example.com\ndevises: []")
			eventually(t, s, "the program to name a field that it doesn't know", func() bool {
				return strings.Contains(program.Output(), "devises")
			})
			if _, all := taints(); all != 5 {
				t.Errorf("%d devices after a mistake in the file, want those of before", all)
			}
			write(strings.ReplaceAll(string(sample), "driver: gpu", "pool: renamed\ndriver: gpu"))
			eventually(t, s, "the devices to be in the other pool, and in that alone", func() bool {
				for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
					if slice.Spec.Pool.Name != "renamed" {
						return false
					}
				}
				_, all := taints()
				return all == 5
			})
			write(strings.ReplaceAll(string(sample), "driver: gpu", "driver: other"))
			eventually(t, s, "the devices to be those of the other driver, and of that alone", func() bool {
				for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
					if slice.Spec.Driver != "other.example.com" {
						return false
					}
				}
				_, all := taints()
				return all == 5
			})
			write(strings.ReplaceAll(string(sample), "xid-79", "(fell off the bus, "+strings.Repeat("twice, ", 10)+")"))
			eventually(t, s, "a text to be the value of the taint", func() bool {
				for _, slice := range apitest.List[*resourcev1.ResourceSlice](s, "") {
					for _, d := range slice.Spec.Devices {
						if len(d.Taints) > 0 && strings.HasPrefix(d.Taints[0].Value, "fell-off-the-bus") {
							_, all := taints()
							return all == 5
						}
					}
				}
				return false
			})
			write(strings.ReplaceAll(string(sample), "unhealthy: xid-79", ""))
			eventually(t, s, "the taint to go", func() bool {
				tainted, all := taints()
				return all == 5 && tainted == 0
			})
			if err := program.Stop(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
			if _, all := taints(); all != 0 {
				t.Errorf("%d devices are left after --withdraw", all)
			}
			if name != "Node" { // it may not list cluster pools of an earlier process
				nothingRefused(t, s)
			}
		})
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"--no-such-flag"}, {"leftover"}, {"--poll", "soon"}} {
		if err := startProgram(t, args...).Wait(); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
	s := newServer(t)
	kubeconfig := kubeconfig(t, s, apitest.User{})
	for want, args := range map[string][]string{
		"NodeName": {"--node-name", "Not A Name"},
		"--poll":   {"--node-name", "n1", "--poll", "0s"},
	} {
		err := startProgram(t, append(args, "--kubeconfig", kubeconfig)...).Wait()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
