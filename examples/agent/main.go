// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Agent is a program whose configuration comes from a ConfigMap, and that no
// content of that ConfigMap can keep down: it boots on what is on its disk,
// tries out what is new, and goes back to what was good.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/examples/internal/kube"
)

// version is what the linker sets (-ldflags=-X=main.version=...). Another
// version gives a configuration that was rejected another chance.
var version = "dev"

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("agent")
	dir := flags.String("store", "/var/lib/kubewright-agent", "`directory` of the configuration on disk; its parent must exist")
	ref := flags.String("configmap", "kubewright/agent/config.yaml", "`namespace/name/key` of the configuration")
	soak := flags.Duration("soak", configcheckpoint.DefaultSoak, "how `long` a new configuration must run well to be called good")
	every := flags.Duration("health-every", configcheckpoint.DefaultEvery, "how `often` the health of a new configuration is checked")
	grace := flags.Duration("health-grace", configcheckpoint.DefaultGrace, "how `long` a new configuration may be unhealthy")
	supervised := flags.Bool("supervise", false, "start the agent anew whenever it fails, as systemd does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *supervised && os.Getenv(childMark) == "" {
		return supervise(ctx, args, stdout)
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	namespace, rest, _ := strings.Cut(*ref, "/")
	name, key, _ := strings.Cut(rest, "/")
	source, err := configcheckpoint.ConfigMap(client.CoreV1(), namespace, name, key)
	if err != nil {
		return err
	}

	work := &work{stdout: stdout}
	controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
		Dir: *dir,
		Codec: configcheckpoint.Codec[Settings]{
			Decode:   decode,
			Validate: Settings.validate,
			Default:  func() (Settings, error) { return Settings{Greeting: "hello"}, nil },
		},
		Source: source,
		Build:  version,
		Trial:  configcheckpoint.Trial{Soak: *soak, Every: *every, Grace: *grace, Health: work.health},
		Hooks: configcheckpoint.Hooks{StatusChanged: func(s configcheckpoint.Status) {
			// An agent with a Node has this condition in the Node's status.
			c := s.Condition("AgentConfigOK")
			fmt.Fprintf(stdout, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}},
	})
	if err != nil {
		return err
	}
	// From here on nothing needs the API server: it may come hours later.
	active, err := controller.Boot(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "booted with the %s configuration, %s\n", active.Role, active.Ref)

	var failure error
	group := kube.NewGroup(ctx)
	group.Go(func(ctx context.Context) error {
		failure = work.run(ctx, active.Config)
		return failure
	})
	group.Go(controller.Run)
	err = group.Wait()
	// What ended the work decides whether this start counts against the
	// configuration: a stop that was asked for does not.
	err = errors.Join(err, controller.Close(failure))
	if errors.Is(err, configcheckpoint.ErrRestart) {
		return restart{err}
	}
	return err
}

// restart is the error of a process that wants to be started again.
type restart struct{ error }

// ExitStatus is EX_TEMPFAIL of sysexits.h. Any status but 0 would do: with 0
// the supervisor takes the work for done (Restart=on-failure), and the node
// stays without its agent.
func (restart) ExitStatus() int { return 75 }
