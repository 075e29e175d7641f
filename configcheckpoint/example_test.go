// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// Settings is the configuration of the agent in these examples.
type Settings struct {
	PollSeconds int `json:"pollSeconds"`
}

// codec says how payloads become Settings.
func codec() configcheckpoint.Codec[Settings] {
	return configcheckpoint.Codec[Settings]{
		Decode: func(data []byte) (s Settings, err error) {
			return s, yaml.UnmarshalStrict(data, &s)
		},
		Validate: func(s Settings) error {
			if s.PollSeconds < 1 {
				return errors.New("pollSeconds must be at least 1")
			}
			return nil
		},
		Default: func() (Settings, error) { return Settings{PollSeconds: 60}, nil },
	}
}

// An agent boots on the configuration on its disk, and asks its supervisor for a restart
// when a new configuration has arrived. The new one is then on trial.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "config.yaml")
	source, err := configcheckpoint.File(file, time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	// One life of the process; the loop below stands for the supervisor.
	process := func(ctx context.Context) error {
		controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
			Dir:    filepath.Join(dir, "store"),
			Codec:  codec(),
			Source: source,
			Build:  "v1.2.3",
		})
		if err != nil {
			return err
		}
		active, err := controller.Boot(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("polling every %d s: %s, on trial: %t\n", active.Config.PollSeconds, active.Role, active.Trial)
		if active.Trial {
			// An operator, or a check of the agent's own, confirms it.
			if err := controller.Verdict(nil); err != nil {
				return err
			}
			return controller.Close(nil)
		}
		err = controller.Run(ctx)
		return errors.Join(err, controller.Close(nil))
	}

	if err := os.WriteFile(file, []byte("pollSeconds: 10\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	err = process(context.Background())
	fmt.Println("restart:", errors.Is(err, configcheckpoint.ErrRestart))
	fmt.Println(process(context.Background()))
	// Output:
	// polling every 60 s: Default, on trial: false
	// restart: true
	// polling every 10 s: Assigned, on trial: true
	// <nil>
}
