// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// What runs and why is a condition of the Node, for whatever writes the Node's
// status.
func ExampleStatus_Condition() {
	status := configcheckpoint.Status{
		Phase:   configcheckpoint.PhaseRolledBack,
		OK:      corev1.ConditionFalse,
		Reason:  configcheckpoint.ReasonCrashLoop,
		Message: "ConfigMap kube-system/agent[config.yaml] was rejected: 3 starts without success",
	}
	condition := status.Condition("AgentConfigOK")
	fmt.Printf("%s=%s %s\n", condition.Type, condition.Status, condition.Reason)
	fmt.Println(condition.Message)
	// Output:
	// AgentConfigOK=False CrashLoop
	// ConfigMap kube-system/agent[config.yaml] was rejected: 3 starts without success
}

// A rollout begins on a tenth of the nodes; the share is raised while the
// agents run, here by a variable, elsewhere by another key of the ConfigMap.
func ExampleHashGate() {
	percent := 10
	for _, percent = range []int{10, 50, 100} {
		admitted := 0
		for n := range 1000 {
			gate := configcheckpoint.HashGate(fmt.Sprint("node-", n), func() int { return percent })
			wait, err := gate(context.Background(), configcheckpoint.Payload{Data: []byte("pollSeconds: 10")})
			if err == nil && wait == 0 {
				admitted++
			}
		}
		fmt.Printf("%d%%: about %d of 1000 nodes\n", percent, (admitted+50)/100*100)
	}
	// Output:
	// 10%: about 100 of 1000 nodes
	// 50%: about 500 of 1000 nodes
	// 100%: about 1000 of 1000 nodes
}
