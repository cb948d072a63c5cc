package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	replicaSeparator = "::"
	registerTimeout  = 5 * time.Second
	// Source: NVIDIA/k8s-device-plugin v0.20.0, internal/plugin/server.go (read 2026-11-30).
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	volumeMounts   = "/var/run/nvidia-container-devices"
)

// Device files that every GPU container needs, as far as the host has them.
var controlFiles = []string{
	"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
}

// plugin serves one resource.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer

	conf     config
	resource string
	replicas int
	devices  []*device
	socket   string
	kubelet  string
	onLost   func()

	mu        sync.Mutex
	unhealthy map[string]bool
	changed   chan struct{} // closed and replaced when unhealthy changes

	server *grpc.Server
	cancel context.CancelFunc
	ctx    context.Context
	health sync.WaitGroup
}

func newPlugin(conf config, resource string, devices []*device, folder string) *plugin {
	replicas := conf.replicas(resource)
	name := resource
	if replicas > 1 && conf.Sharing.TimeSlicing.RenameByDefault {
		name += ".shared"
	}
	_, short, _ := strings.Cut(name, "/")
	ctx, cancel := context.WithCancel(context.Background())
	return &plugin{
		conf: conf, resource: name, replicas: replicas, devices: devices,
		socket:    filepath.Join(folder, "nvidia-"+short+".sock"),
		kubelet:   filepath.Join(folder, "kubelet.sock"),
		unhealthy: map[string]bool{}, changed: make(chan struct{}), ctx: ctx, cancel: cancel,
	}
}

func (p *plugin) start(lib nvml.Interface) error {
	if err := os.Remove(p.socket); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("%s: want a fresh socket, have %w", p.resource, err)
	}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		return fmt.Errorf("%s: want a socket, have %w; mount the kubelet's folder", p.resource, err)
	}
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() {
		if err := p.server.Serve(listener); err != nil {
			klog.Errorf("%s: the server ended: %v", p.resource, err)
		}
	}()
	if err := p.register(); err != nil {
		return fmt.Errorf("%s: want to register with the kubelet, have %w; is it running", p.resource, err)
	}
	klog.Infof("%s: registered with the kubelet, %d devices", p.resource, len(p.devices)*p.replicas)
	p.health.Add(1)
	go func() {
		defer p.health.Done()
		watchHealth(p.ctx, lib, p.devices, p.lost)
	}()
	return nil
}

func (p *plugin) stop() {
	p.cancel()
	if p.server != nil {
		p.server.Stop()
	}
	p.health.Wait()
	os.Remove(p.socket)
}

func (p *plugin) register() error {
	connection, err := grpc.NewClient("unix:"+p.kubelet,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version:      pluginapi.Version,
		Endpoint:     filepath.Base(p.socket),
		ResourceName: p.resource,
		Options:      &pluginapi.DevicePluginOptions{},
	})
	return err
}

func (p *plugin) lost(d *device, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unhealthy[d.uuid] {
		return
	}
	klog.Warningf("%s: %s is marked unhealthy: %s", p.resource, d.uuid, reason)
	p.unhealthy[d.uuid] = true
	close(p.changed)
	p.changed = make(chan struct{})
	if p.onLost != nil {
		p.onLost()
	}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *plugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		p.mu.Lock()
		list := advertised(p.devices, p.replicas, p.unhealthy)
		changed := p.changed
		p.mu.Unlock()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-p.ctx.Done():
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		one, err := p.allocate(container.DevicesIds)
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, one)
	}
	return response, nil
}

func (p *plugin) allocate(ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	slicing := p.conf.Sharing.TimeSlicing
	if p.replicas > 1 && slicing.FailRequestsGreaterThanOne && len(ids) > 1 {
		return nil, fmt.Errorf("%s: want one device of a shared resource per container, have %d requested; "+
			"more do not give more of a GPU", p.resource, len(ids))
	}
	var chosen []*device
	seen := map[string]bool{}
	for _, id := range ids {
		uuid, _, _ := strings.Cut(id, replicaSeparator)
		d := p.byUUID(uuid)
		if d == nil {
			return nil, fmt.Errorf("%s: want one of its devices, have %s; restart the kubelet", p.resource, id)
		}
		if !seen[uuid] {
			seen[uuid] = true
			chosen = append(chosen, d)
		}
	}
	names := make([]string, len(chosen))
	for i, d := range chosen {
		names[i] = d.uuid
		if p.conf.Flags.Plugin.DeviceIDStrategy == idIndex {
			names[i] = d.index
		}
	}
	response := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{}}
	for _, strategy := range p.conf.Flags.Plugin.DeviceListStrategy {
		switch strategy {
		case listEnvvar:
			response.Envs[visibleDevices] = strings.Join(names, ",")
		case listVolumeMounts:
			response.Envs[visibleDevices] = volumeMounts
			for _, name := range names {
				response.Mounts = append(response.Mounts, &pluginapi.Mount{
					HostPath: "/dev/null", ContainerPath: filepath.Join(volumeMounts, name),
				})
			}
		}
	}
	for name, on := range map[string]bool{
		"NVIDIA_GDRCOPY": p.conf.Flags.GDRCopyEnabled,
		"NVIDIA_GDS":     p.conf.Flags.GDSEnabled,
		"NVIDIA_MOFED":   p.conf.Flags.MOFEDEnabled,
	} {
		if on {
			response.Envs[name] = "enabled"
		}
	}
	if p.conf.Flags.Plugin.PassDeviceSpecs {
		response.Devices = p.deviceSpecs(chosen)
	}
	return response, nil
}

func (p *plugin) byUUID(uuid string) *device {
	for _, d := range p.devices {
		if d.uuid == uuid {
			return d
		}
	}
	return nil
}

func (p *plugin) deviceSpecs(chosen []*device) []*pluginapi.DeviceSpec {
	var specs []*pluginapi.DeviceSpec
	seen := map[string]bool{}
	add := func(path string) {
		if !seen[path] {
			seen[path] = true
			specs = append(specs, &pluginapi.DeviceSpec{
				ContainerPath: path, HostPath: filepath.Join(p.conf.Flags.NvidiaDriverRoot, path), Permissions: "rw",
			})
		}
	}
	for _, path := range controlFiles {
		if _, err := os.Stat(path); err == nil {
			add(path)
		}
	}
	for _, d := range chosen {
		for _, path := range d.paths {
			add(path)
		}
	}
	return specs
}
