// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// deployable are the examples with a Dockerfile and a manifest, and those of them that
// have to run as root.
var deployable = map[string]bool{"customkubelet": false, "vkprovider": false, "leader": false, "dradriver": true, "fleet": false}

// A deployment is what an example's folder has for a cluster.
type deployment struct {
	dockerfile string
	files      []string // what its manifest tells the reader to apply, the manifest last
	pod        corev1.PodTemplateSpec
	objects    []apiruntime.Object
}

func readDeployment(t *testing.T, name string) (d deployment) {
	t.Helper()
	dockerfile, err := os.ReadFile(filepath.Join("../../examples", name, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := os.ReadFile(filepath.Join("../../examples", name, "deploy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	d.dockerfile = string(dockerfile)
	for _, match := range regexp.MustCompile(`(?m)^#.* -f (\S+)`).FindAllString(string(manifest), -1) {
		for _, file := range regexp.MustCompile(`-f (\S+)`).FindAllStringSubmatch(match, -1) {
			d.files = append(d.files, file[1])
		}
	}
	if want := "examples/" + name + "/deploy.yaml"; len(d.files) < 2 || d.files[len(d.files)-1] != want {
		t.Fatalf("the comment of the manifest applies %q, want permissions, and %s last", d.files, want)
	}
	for _, file := range d.files {
		objects := decodeStrictly(t, file)
		d.objects = append(d.objects, objects...)
		for _, object := range objects {
			switch o := object.(type) {
			case *appsv1.Deployment:
				d.pod = o.Spec.Template
			case *appsv1.DaemonSet:
				d.pod = o.Spec.Template
			}
		}
	}
	if len(d.pod.Spec.Containers) != 1 {
		t.Fatalf("%d containers", len(d.pod.Spec.Containers))
	}
	return d
}

// decodeStrictly returns the objects of a manifest, which must have no unknown fields.
func decodeStrictly(t *testing.T, file string) (objects []apiruntime.Object) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../..", file))
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(string(content), -1) {
		if !regexp.MustCompile(`(?m)^[^#\s]`).MatchString(document) {
			continue
		}
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
	return objects
}

// TestDockerfilesBuild runs the lines of the Dockerfiles that build something: the program is
// static, and has the flags and the ports of its manifest.
func TestDockerfilesBuild(t *testing.T) {
	for name, root := range deployable {
		t.Run(name, func(t *testing.T) {
			d := readDeployment(t, name)
			binary := filepath.Join(t.TempDir(), name)
			built := 0
			for _, run := range regexp.MustCompile(`(?m)^RUN (.*)$`).FindAllStringSubmatch(d.dockerfile, -1) {
				cmd := exec.Command("sh", "-ec", strings.ReplaceAll(run[1], "/out/"+name, binary))
				cmd.Dir = "../.." // WORKDIR, after COPY . .
				cmd.Env = append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("RUN %s: %v\n%s", run[1], err, out)
				}
				built++
			}
			for _, line := range []string{"COPY . .", "FROM scratch", "COPY --from=build /out/" + name + " /" + name, `ENTRYPOINT ["/` + name + `"]`} {
				if !slices.Contains(strings.Split(d.dockerfile, "\n"), line) {
					t.Errorf("the Dockerfile has no line %s", line)
				}
			}
			if built != 1 {
				t.Fatalf("%d lines RUN", built)
			}
			isStatic(t, binary)
			if runsAsRoot := !strings.Contains(d.dockerfile, "\nUSER 65532:65532\n"); runsAsRoot != root {
				t.Errorf("the image runs as root: %v", runsAsRoot)
			}
			c := d.pod.Spec.Containers[0]
			if sc := d.pod.Spec.SecurityContext; !root && (sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot) {
				t.Error("the Pod does not say runAsNonRoot")
			}
			if a := d.pod.Annotations; a["prometheus.io/scrape"] != "true" || a["prometheus.io/port"] != "8081" {
				t.Errorf("Prometheus does not find the metrics with the annotations %v", a)
			}
			help, _ := exec.Command(binary, "--help").CombinedOutput()
			for _, arg := range c.Args {
				flag, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
				if !regexp.MustCompile(`(?m)^  -` + flag + `( |$)`).Match(help) {
					t.Errorf("the program has no flag --%s:\n%s", flag, help)
				}
			}
			for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.StrVal != "probes" || !slices.Contains(c.Args, "--probe-address=:8081") ||
					!slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "probes" && p.ContainerPort == 8081 }) {
					t.Errorf("the probe %v does not reach the program", probe)
				}
			}
		})
	}
}

// isStatic checks that a program needs no other file.
func isStatic(t *testing.T, binary string) {
	t.Helper()
	file, err := elf.Open(binary)
	if err != nil {
		t.Skip("not an ELF file: ", err)
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is linked dynamically")
		}
	}
}

// TestManifestsAreApplied applies the manifests as their comments say. The cluster has one
// Node, on which nothing runs: the objects exist, the API server admits the Pods that the
// controllers make of them, and to apply them again changes nothing.
func TestManifestsAreApplied(t *testing.T) {
	quiet(t)
	cluster := ownCluster(t, harness.Options{})
	client, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "machine"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name := range deployable {
		d := readDeployment(t, name)
		var files []string
		for _, file := range d.files {
			files = append(files, "-f", "../../"+file)
		}
		apply := append([]string{"apply", "--validate=strict"}, files...)
		get := append([]string{"get", `-o=jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}`}, files...)
		cluster.Kubectl(t, apply...)
		once := cluster.Kubectl(t, get...)
		cluster.Kubectl(t, apply...)
		if twice := cluster.Kubectl(t, get...); twice != once || strings.Count(once, "\n") != len(d.objects) {
			t.Errorf("%s has %d objects. Applied once:\n%sand twice:\n%s", name, len(d.objects), once, twice)
		}
		var namespace string
		pods := 0
		for _, object := range d.objects {
			switch o := object.(type) {
			case *appsv1.Deployment:
				namespace, pods = o.Namespace, int(*o.Spec.Replicas)
				cluster.Kubectl(t, "wait", "--timeout=90s", fmt.Sprintf("--for=jsonpath={.status.replicas}=%d", pods), "-n", namespace, "deployment/"+name)
			case *appsv1.DaemonSet:
				namespace, pods = o.Namespace, 1
				cluster.Kubectl(t, "wait", "--timeout=90s", "--for=jsonpath={.status.currentNumberScheduled}=1", "-n", namespace, "daemonset/"+name)
			}
		}
		made, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil || len(made.Items) != pods || pods == 0 {
			t.Errorf("%s has %d pods, want %d: %v", name, len(made.Items), pods, err)
		}
		for _, pod := range made.Items {
			if _, err := client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), pod.Spec.ServiceAccountName, metav1.GetOptions{}); err != nil || pod.Annotations["prometheus.io/port"] != "8081" {
				t.Errorf("%s: %v, annotations %v", pod.Name, err, pod.Annotations)
			}
		}
	}
}
