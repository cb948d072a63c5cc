package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/urfave/cli/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is the registration half of one.
type kubelet struct {
	pluginapi.UnimplementedRegistrationServer
	folder     string
	registered chan string
	server     *grpc.Server
}

func startKubelet(t *testing.T, folder string) *kubelet {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{folder: folder, registered: make(chan string, 10), server: grpc.NewServer()}
	pluginapi.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(listener)
	t.Cleanup(k.server.Stop)
	return k
}

func (k *kubelet) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	k.registered <- r.ResourceName + " at " + r.Endpoint
	return &pluginapi.Empty{}, nil
}

func (k *kubelet) wait(t *testing.T) string {
	t.Helper()
	select {
	case name := <-k.registered:
		return name
	case <-time.After(10 * time.Second):
		t.Fatal("nothing registered")
		return ""
	}
}

func (k *kubelet) client(t *testing.T, endpoint string) pluginapi.DevicePluginClient {
	t.Helper()
	connection, err := grpc.NewClient("unix:"+filepath.Join(k.folder, endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return pluginapi.NewDevicePluginClient(connection)
}

// nvmlServer is two GPUs that can be lost, and an Xid that can be sent.
type nvmlServer struct {
	*dgxa100.Server
	mu   sync.Mutex
	lost map[string]bool
	xids chan nvml.EventData
}

func newServer() *nvmlServer {
	s := &nvmlServer{Server: a100s(2), lost: map[string]bool{}, xids: make(chan nvml.EventData, 1)}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				select {
				case event := <-s.xids:
					return event, nvml.SUCCESS
				case <-time.After(20 * time.Millisecond):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	for _, handle := range s.Devices {
		gpu := handle.(*dgxa100.Device)
		gpu.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
		gpu.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.lost[gpu.UUID] {
				return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST
			}
			return nvml.Memory{}, nvml.SUCCESS
		}
	}
	return s
}

func (s *nvmlServer) uuid(index int) string { return s.Devices[index].(*dgxa100.Device).UUID }

// start runs the plugin as main does, with these arguments.
func start(t *testing.T, lib nvml.Interface, folder string, arguments ...string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	app := &cli.App{Flags: cliFlags(), Action: func(c *cli.Context) error { return run(c, lib, folder) }}
	go func() { done <- app.Run(append([]string{"plugin"}, arguments...)) }()
	return done
}

func stop(t *testing.T, done <-chan error) {
	t.Helper()
	syscall.Kill(os.Getpid(), syscall.SIGTERM)
	if err := ended(t, done); err != nil {
		t.Fatal(err)
	}
}

func ended(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(15 * time.Second):
		t.Fatal("the plugin did not end")
		return nil
	}
}

func healths(t *testing.T, stream grpc.ServerStreamingClient[pluginapi.ListAndWatchResponse]) string {
	t.Helper()
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, d := range response.Devices {
		all = append(all, d.Health)
	}
	sort.Strings(all)
	return strings.Join(all, " ")
}

func TestServesTheKubelet(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder)
	lib := newServer()
	done := start(t, lib, folder)
	if have := k.wait(t); have != "nvidia.com/gpu at nvidia-gpu.sock" {
		t.Fatal(have)
	}
	client := k.client(t, "nvidia-gpu.sock")
	stream, err := client.ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if have := healths(t, stream); have != "Healthy Healthy" {
		t.Fatal(have)
	}
	response, err := client.Allocate(t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{
			{DevicesIds: []string{lib.uuid(1), lib.uuid(0)}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	have := response.ContainerResponses[0].Envs["NVIDIA_VISIBLE_DEVICES"]
	if want := lib.uuid(1) + "," + lib.uuid(0); have != want {
		t.Errorf("want %s, have %s", want, have)
	}

	t.Run("an application's Xid changes nothing, another one does", func(t *testing.T) {
		lib.xids <- nvml.EventData{Device: lib.Devices[0], EventType: nvml.EventTypeXidCriticalError, EventData: 13}
		lib.xids <- nvml.EventData{Device: lib.Devices[0], EventType: nvml.EventTypeXidCriticalError, EventData: 79}
		if have := healths(t, stream); have != "Healthy Unhealthy" {
			t.Fatal(have)
		}
	})
	t.Run("a lost GPU is unhealthy", func(t *testing.T) {
		lib.mu.Lock()
		lib.lost[lib.uuid(1)] = true
		lib.mu.Unlock()
		if have := healths(t, stream); have != "Unhealthy Unhealthy" {
			t.Fatal(have)
		}
	})
	stop(t, done)
}

func TestRegistersAgainWhenTheKubeletRestarts(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder)
	done := start(t, newServer(), folder)
	k.wait(t)
	k.server.Stop() // removes its socket
	k = startKubelet(t, folder)
	k.wait(t)
	stop(t, done)
}

func TestTimeSlicing(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	write(t, file, `
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources: [{name: nvidia.com/gpu, replicas: 4}]
`)
	k := startKubelet(t, folder)
	lib := newServer()
	done := start(t, lib, folder, "--config-file", file)
	if have := k.wait(t); have != "nvidia.com/gpu.shared at nvidia-gpu.shared.sock" {
		t.Fatal(have)
	}
	client := k.client(t, "nvidia-gpu.shared.sock")
	stream, err := client.ListAndWatch(t.Context(), &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Devices) != 8 {
		t.Errorf("want 8 devices, have %d", len(response.Devices))
	}
	_, err = client.Allocate(t.Context(), &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{
			{DevicesIds: []string{response.Devices[0].ID, response.Devices[1].ID}},
		},
	})
	if err == nil || !strings.Contains(err.Error(), "want one device of a shared resource") {
		t.Errorf("want two replicas refused, have %v", err)
	}
	stop(t, done)
}

func TestWithoutNVML(t *testing.T) {
	lib := newServer()
	lib.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	err := ended(t, start(t, lib, t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), "want libnvidia-ml.so.1") {
		t.Errorf("want it to end for lack of NVML, have %v", err)
	}
	done := start(t, lib, t.TempDir(), "--fail-on-init-error=false")
	select {
	case err := <-done:
		t.Errorf("want it to wait, have it ended: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	stop(t, done)
}

func TestRefusedConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no version": {"flags: {migStrategy: none}", "want version v1"},
		"strategy":   {"version: v1\nflags: {migStrategy: all}", "want migStrategy none, single or mixed"},
		"mps":        {"version: v1\nsharing: {mps: {resources: []}}", "MPS is not simulated"},
		"cdi":        {"version: v1\nflags: {plugin: {deviceListStrategy: cdi-cri}}", "CDI lists are not simulated"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			file := filepath.Join(folder, "config.yaml")
			write(t, file, c.text)
			err := ended(t, start(t, newServer(), folder, "--config-file", file))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want an error with %q, have %v", c.want, err)
			}
		})
	}
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "config.yaml")
	write(t, file, "version: v1\nflags: {migStrategy: single}")
	t.Setenv("MIG_STRATEGY", "mixed")
	app := &cli.App{Flags: cliFlags(), Action: func(c *cli.Context) error {
		conf, err := loadConfig(c)
		if err != nil {
			return err
		}
		if conf.Flags.MigStrategy != migMixed || !conf.Flags.FailOnInitError {
			t.Errorf("want mixed and failing, have %+v", conf.Flags)
		}
		return nil
	}}
	if err := app.Run([]string{"plugin", "--config-file", file}); err != nil {
		t.Fatal(err)
	}
}

func TestPassDeviceSpecs(t *testing.T) {
	conf := defaultConfig()
	conf.Flags.Plugin.PassDeviceSpecs = true
	conf.Flags.NvidiaDriverRoot = "/run/driver"
	p := newPlugin(conf, resourceGPU, []*device{{uuid: "GPU-0", paths: []string{"/dev/nvidia0"}}}, t.TempDir())
	response, err := p.allocate([]string{"GPU-0"})
	if err != nil {
		t.Fatal(err)
	}
	last := response.Devices[len(response.Devices)-1]
	if last.ContainerPath != "/dev/nvidia0" || last.HostPath != "/run/driver/dev/nvidia0" {
		t.Errorf("have %+v", last)
	}
	if _, err := p.allocate([]string{"GPU-9"}); err == nil {
		t.Error("want an unknown device refused")
	}
}
