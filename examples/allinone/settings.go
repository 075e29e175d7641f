// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
)

// settings can change without a new command line. Both replicas have them. They
// take effect without a restart, and therefore without a change of the leader.
type settings struct {
	// Pods is the node's capacity of pods.
	Pods int `json:"pods"`
	// Devices is the number of devices that the node offers.
	Devices int `json:"devices"`
}

// builtin returns the settings that apply while none are assigned.
func builtin() (settings, error) { return settings{Pods: 110, Devices: 4}, nil }

// decode decodes settings. A misspelt key is an error.
func decode(data []byte) (settings, error) {
	s, _ := builtin()
	err := yaml.UnmarshalStrict(data, &s)
	return s, err
}

// validate returns all invalid values.
func (s settings) validate() error {
	var problems []error
	if s.Pods < 0 || s.Pods > 10000 {
		problems = append(problems, fmt.Errorf("pods: %d is not between 0 and 10000", s.Pods))
	}
	if s.Devices < 0 || s.Devices > 1000 {
		problems = append(problems, fmt.Errorf("devices: %d is not between 0 and 1000", s.Devices))
	}
	return errors.Join(problems...)
}

// configCondition is the Node condition that reports which settings run.
const configCondition corev1.NodeConditionType = "SettingsOK"

// newCheckpoint returns the settings controller of a replica. Each replica has
// its own store.
func newCheckpoint(s *site, client corev1client.ConfigMapsGetter, dir, ref string, soak time.Duration) (*configcheckpoint.Controller[settings], error) {
	namespace, rest, _ := strings.Cut(ref, "/")
	name, key, _ := strings.Cut(rest, "/")
	source, err := configkube.ConfigMap(client, namespace, name, key)
	if err != nil {
		return nil, err
	}
	return configcheckpoint.New(configcheckpoint.Config[settings]{
		Dir:    dir,
		Codec:  configcheckpoint.Codec[settings]{Decode: decode, Validate: settings.validate, Default: builtin},
		Source: source,
		Trial:  configcheckpoint.Trial{Soak: soak, Health: s.health},
		Apply:  s.apply,
		Hooks: configcheckpoint.Hooks{StatusChanged: func(status configcheckpoint.Status) {
			s.printf("settings: %s: %s", status.Reason, status.Message)
			s.changed()
		}},
	})
}
