// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"debug/elf"
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
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// deployable are the examples with a Dockerfile and a manifest, and those of them that
// have to run as root.
var deployable = map[string]bool{"customkubelet": false, "vkprovider": false, "leader": false, "dradriver": true, "fleet": false}

// A deployment is what an example's folder has for a cluster.
type deployment struct {
	dockerfile string
	files      []string // what its manifest tells the reader to apply, the manifest last
	pod        corev1.PodSpec
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
		for _, object := range decodeStrictly(t, file) {
			switch o := object.(type) {
			case *appsv1.Deployment:
				d.pod = o.Spec.Template.Spec
			case *appsv1.DaemonSet:
				d.pod = o.Spec.Template.Spec
			}
		}
	}
	if len(d.pod.Containers) != 1 {
		t.Fatalf("%d containers", len(d.pod.Containers))
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
			c := d.pod.Containers[0]
			if sc := d.pod.SecurityContext; !root && (sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot) {
				t.Error("the Pod does not say runAsNonRoot")
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

// TestManifestsAreAccepted applies the manifests as their comments say. The server only
// validates and admits them, because their Pods would come to the nodes of other tests.
func TestManifestsAreAccepted(t *testing.T) {
	quiet(t)
	cluster := shared.Cluster(t)
	applyManifests(t, cluster) // the namespace
	for name := range deployable {
		d := readDeployment(t, name)
		args := []string{"apply", "--validate=strict", "--dry-run=server"}
		for _, file := range d.files {
			args = append(args, "-f", "../../"+file)
		}
		cluster.Kubectl(t, args...)
	}
}
