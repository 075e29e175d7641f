// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package azureaci runs the provider of azure-aci, as its module has it, with vkadapter and
// with virtual-kubelet's own node package, side by side. Its cloud is a fake.
package azureaci

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	azaci "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/containerinstance/armcontainerinstance/v2"
	"github.com/gorilla/websocket"
	"github.com/virtual-kubelet/azure-aci/pkg/auth"
	"github.com/virtual-kubelet/azure-aci/pkg/client"
	aci "github.com/virtual-kubelet/azure-aci/pkg/provider"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/test/ports/internal/side"
)

func TestMain(m *testing.M) { side.Main(m, newProcess) }

// azure is a fake of the part of Azure's API that the provider uses.
type azure struct {
	side.Cloud

	mu     sync.Mutex
	groups map[string]*azaci.ContainerGroup
}

// endpointVariable has the URL of the fake. The provider takes clients for it.
const endpointVariable = "PORTS_AZURE_ENDPOINT"

func newPort() *side.Port {
	a := &azure{groups: map[string]*azaci.ContainerGroup{}}
	mux := http.NewServeMux()
	const groups = "/subscriptions/subscription/resourceGroups/group/providers/Microsoft.ContainerInstance/containerGroups"
	mux.HandleFunc("GET "+groups, a.list)
	mux.HandleFunc("PUT "+groups+"/{group}", a.create)
	mux.HandleFunc("GET "+groups+"/{group}", a.get)
	mux.HandleFunc("DELETE "+groups+"/{group}", a.delete)
	mux.HandleFunc("GET "+groups+"/{group}/containers/{container}/logs", a.logs)
	mux.HandleFunc("POST "+groups+"/{group}/containers/{container}/exec", a.exec)
	mux.HandleFunc("GET /terminal", a.terminal)
	a.Handler = mux
	return &side.Port{
		Cloud: &a.Cloud, New: newProcess, Exit: a.exit,
		// A goroutine of the provider panics.
		NotEmpty: true,
		Env: func(url string) map[string]string {
			return map[string]string{
				endpointVariable: url, "ACI_RESOURCE_GROUP": "group", "ACI_REGION": "westeurope",
				"ACI_VNET_NAME": "net", "ACI_VNET_RESOURCE_GROUP": "group",
			}
		},
	}
}

// token is a credential of the fake, which checks none.
type token struct{}

func (token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "token", ExpiresOn: time.Now().AddDate(10, 0, 0)}, nil
}

// late is a lister that a provider gets before the process that has it begins: the provider
// starts goroutines that never end, so it must be made outside of the bubble.
type late struct{ corev1listers.PodLister }

// newProcess does what the provider's program does, with a token of the fake.
func newProcess() (side.Process, error) {
	services := map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {Endpoint: os.Getenv(endpointVariable), Audience: "fake"}}
	opts := &arm.ClientOptions{DisableRPRegistration: true, ClientOptions: azcore.ClientOptions{
		Cloud: cloud.Configuration{Services: services}, Transport: http.DefaultClient, InsecureAllowCredentialWithHTTP: true,
	}}
	containers, err := azaci.NewContainersClient("subscription", token{}, opts)
	if err != nil {
		return nil, err
	}
	groups, err := azaci.NewContainerGroupsClient("subscription", token{}, opts)
	if err != nil {
		return nil, err
	}
	pods := &late{}
	provider, err := aci.NewACIProvider(context.Background(), "", auth.Config{AuthConfig: &auth.Authentication{}},
		&client.AzClientsAPIs{ContainersClient: containers, ContainerGroupClient: groups}, nodeutil.ProviderConfig{Pods: pods},
		side.NodeName, "Linux", "192.0.2.1", 10250, "cluster.local", apitest.New(apitest.Options{}).Client(apitest.User{}))
	if err != nil {
		return nil, err
	}
	return func(pc nodeutil.ProviderConfig) node.PodLifecycleHandler {
		pods.PodLister = pc.Pods
		provider.ConfigureNode(context.Background(), pc.Node)
		return provider
	}, nil
}

func (a *azure) create(w http.ResponseWriter, r *http.Request) {
	var group azaci.ContainerGroup
	if err := json.NewDecoder(r.Body).Decode(&group); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name, state, running, now, none := r.PathValue("group"), "Succeeded", "Running", time.Now(), int32(0)
	group.Name, group.ID, group.Properties.ProvisioningState = &name, &name, &state
	group.Properties.InstanceView = &azaci.ContainerGroupPropertiesInstanceView{State: &running}
	// The provider asks for the metrics only with a subnet, whose cloud it would need, too.
	group.Properties.Extensions = append(group.Properties.Extensions, client.GetRealtimeMetricsExtension())
	group.Properties.IPAddress = &azaci.IPAddress{IP: new(podIP)}
	for _, c := range group.Properties.Containers {
		c.Properties.InstanceView = &azaci.ContainerPropertiesInstanceView{
			CurrentState: &azaci.ContainerState{State: &running, StartTime: &now, DetailStatus: &running},
			RestartCount: &none, Events: []*azaci.Event{},
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.groups[name] = &group
	a.Started(name, *group.Tags["UID"])
	answer(w, http.StatusCreated, &group)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func (a *azure) get(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if group, ok := a.groups[r.PathValue("group")]; ok {
		answer(w, http.StatusOK, group)
		return
	}
	w.WriteHeader(http.StatusNotFound)
}

func (a *azure) list(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer(w, http.StatusOK, azaci.ContainerGroupListResult{Value: slices.Collect(maps.Values(a.groups))})
}

func (a *azure) delete(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := r.PathValue("group")
	delete(a.groups, name)
	a.Stopped(name)
	w.WriteHeader(http.StatusNoContent) // as for a group that does not exist
}

func (a *azure) logs(w http.ResponseWriter, r *http.Request) {
	tail, _ := strconv.Atoi(r.URL.Query().Get("tail"))
	content := logOf(r.PathValue("group"), r.PathValue("container"), tail)
	answer(w, http.StatusOK, azaci.Logs{Content: &content})
}

// logOf returns the last lines of a log, or all for 0.
func logOf(group, container string, tail int) string {
	lines := strings.SplitAfter(fmt.Sprintf("started %s\ncontainer %s\nready\n", group, container), "\n")[:3]
	if tail > 0 {
		lines = lines[max(0, len(lines)-tail):]
	}
	return strings.Join(lines, "")
}

func (a *azure) exec(w http.ResponseWriter, r *http.Request) {
	var sent azaci.ContainerExecRequest
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	terminal := "ws://" + r.Host + "/terminal?command=" + url.QueryEscape(*sent.Command)
	password := "password"
	answer(w, http.StatusOK, azaci.ContainerExecResponse{WebSocketURI: &terminal, Password: &password})
}

// terminal is the connection of a command. The command "cat" ends after its first input.
func (a *azure) terminal(w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, password, err := conn.ReadMessage()
	if err != nil {
		return
	}
	output := []byte("ran " + r.URL.Query().Get("command"))
	switch {
	case string(password) != "password":
		output = []byte("denied")
	case r.URL.Query().Get("command") == "cat":
		if _, output, err = conn.ReadMessage(); err != nil {
			return
		}
	}
	_ = conn.WriteMessage(websocket.BinaryMessage, output)
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

// exit ends the containers of a pod with exit code 0.
func (a *azure) exit(pod string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended, now := "Succeeded", time.Now()
	properties := a.groups["default-"+pod].Properties
	properties.InstanceView.State = &ended
	for _, c := range properties.Containers {
		state := c.Properties.InstanceView.CurrentState
		state.State, state.DetailStatus, state.FinishTime, state.ExitCode = &ended, &ended, &now, new(int32)
	}
}

func TestSideBySide(t *testing.T) {
	side.Compare(t, newPort, map[string][]string{
		side.Kubewright: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 2 instances, at most 1 for a pod; new Running, web Running",
			"after two minutes of silence: 3 instances, at most 1 for a pod; late Running, new Running, web Running",
			"after a minute without the API server, web ended: 3 instances, at most 1 for a pod; late Running, new Running, web Succeeded",
			"with a second process: 4 instances, at most 1 for a pod; late Running, new Running, two Running, web Succeeded",
			"deleted: 0 instances, at most 1 for a pod; ",
		},
		// Two processes create the pod "two" twice in some runs.
		side.VirtualKubelet: {
			"created: 2 instances, at most 1 for a pod; gone Running, web Running",
			"restarted, one deleted meanwhile: 1 instances, at most 1 for a pod; web Running",
			"after two minutes of errors: 1 instances, at most 1 for a pod; new Failed ProviderFailed, web Running",
			"after two minutes of silence: 2 instances, at most 1 for a pod; late Running, new Failed ProviderFailed, web Running",
			"after a minute without the API server, web ended: 2 instances, at most 1 for a pod; late Running, new Failed ProviderFailed, web Succeeded",
			"with a second process: 3 instances, at most (1|2) for a pod; late Running, new Failed ProviderFailed, two Running, web Succeeded",
			"deleted: 0 instances, at most (1|2) for a pod; ",
		},
	})
}

func TestKilled(t *testing.T) {
	side.Killed(t, newPort, map[string]side.Stages{
		// The provider returns no UIDs. So in some runs the instance of a pod whose start was not
		// recorded counts as that of an earlier pod: it is stopped, and then started again.
		side.Kubewright: {
			Created: side.AliveKilled.Created,
			Started: "4 instances, at most (1|2) for a pod; ended Succeeded, half Running, new Running, web Running",
			Stopped: "3 instances, at most (1|2) for a pod; ended Succeeded, half Running, new Running",
			Deleted: "0 instances, at most (1|2) for a pod; ",
		},
		side.VirtualKubelet: side.AliveKilled,
	})
}

// podIP is the address of all container groups.
const podIP = "192.0.2.7"

// metrics are the connections of a process that reaches a container group with metrics at podIP.
type metrics struct{ others http.RoundTripper }

func (m metrics) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != podIP+":18899" {
		return m.others.RoundTrip(r)
	}
	w := httptest.NewRecorder()
	_, _ = fmt.Fprintf(w, `{"timestamp": %d, "cpu": {"usageCoreNanoSeconds": 3000000000}, "memory": {"usageBytes": 400, "workingSetBytes": 300, "rssBytes": 200},
		"network": {"interfaces": [{"name": "eth0", "rxBytes": 10, "txBytes": 20}]},
		"containers": [{"name": "main", "cpu": {"usageCoreNanoSeconds": 2000000000}, "memory": {"usageBytes": 300, "workingSetBytes": 250, "rssBytes": 150}}, {"name": "of the cloud"}]}`,
		side.Created.Add(time.Minute).UnixNano())
	return w.Result(), nil
}

// What the provider makes of these metrics.
const (
	summary = `{"node":{"nodeName":"port","startTime":null},"pods":[{"podRef":{"name":"web","namespace":"default","uid":"uid-web"},"startTime":"2026-11-29T00:00:00Z",` +
		`"containers":[{"name":"main","startTime":"2026-11-29T00:00:00Z","cpu":{"time":"2026-11-29T00:01:00Z","usageNanoCores":0,"usageCoreNanoSeconds":2000000000},` +
		`"memory":{"time":"2026-11-29T00:01:00Z","usageBytes":300,"workingSetBytes":250,"rssBytes":150}}],` +
		`"cpu":{"time":"2026-11-29T00:01:00Z","usageNanoCores":0,"usageCoreNanoSeconds":3000000000},` +
		`"memory":{"time":"2026-11-29T00:01:00Z","usageBytes":400,"workingSetBytes":300,"rssBytes":200},` +
		`"network":{"time":"2026-11-29T00:01:00Z","name":"","rxBytes":0,"rxErrors":0,"txBytes":0,"txErrors":0,` +
		`"interfaces":[{"name":"eth0","rxBytes":10,"rxErrors":0,"txBytes":20,"txErrors":0}]}}]}`
	resources = `# HELP container_cpu_usage_seconds_total [ALPHA] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="main",namespace="default",pod="web"} 2 1795910460000
# HELP container_memory_working_set_bytes [ALPHA] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="main",namespace="default",pod="web"} 250 1795910460000
# HELP container_start_time_seconds [ALPHA] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="main",namespace="default",pod="web"} 1.7959104e+09 1795910400000
# HELP pod_cpu_usage_seconds_total [ALPHA] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="default",pod="web"} 3 1795910460000
# HELP pod_memory_working_set_bytes [ALPHA] Current working set of the pod in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace="default",pod="web"} 300 1795910460000
# HELP scrape_error [ALPHA] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE scrape_error gauge
scrape_error 0
`
)

func TestAnswers(t *testing.T) {
	before := http.DefaultTransport
	http.DefaultTransport = metrics{before}
	t.Cleanup(func() { http.DefaultTransport = before })
	all := logOf("default-web", "main", 0)
	side.Answers(t, newPort(), []side.Question{
		{Path: "/containerLogs/default/web/main", Kubewright: "200 " + all},
		{Path: "/containerLogs/default/web/main?tailLines=1", Kubewright: "200 ready\n"},
		{Path: "/containerLogs/default/web/main?tailLines=0", Kubewright: "200 ", VirtualKubelet: "200 " + all},
		{Path: "/containerLogs/default/web/main?limitBytes=5", Kubewright: "200 start", VirtualKubelet: "200 " + all},
		{Path: "/containerLogs/default/web/none", Kubewright: "404 container \"none\" is not in pod default/web, which has: main\n", VirtualKubelet: "200 " + logOf("default-web", "none", 0)},
		{Path: "/containerLogs/default/none/main", Kubewright: "404 pod default/none is not on node \"port\"\n", VirtualKubelet: "404 error getting container logs?): cg is not found"},
		{Path: "/exec/default/web/main?command=hello", Kubewright: "ran hello"},
		{Path: "/exec/default/web/main?command=cat", Stdin: "input", Kubewright: "input"},
		{Path: "/exec/default/none/main?command=hello", Kubewright: "error: unable to upgrade connection: pod default/none is not on node \"port\"", VirtualKubelet: "error: Internal error occurred: error executing command in container: cg is not found"},
		{Path: "/attach/default/web/main", Kubewright: ""},
		{Path: "/stats/summary", Kubewright: "200 " + summary},
		{Path: "/metrics/resource", Kubewright: "200 " + resources},
	})
}
