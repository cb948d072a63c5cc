// Command nvidia-device-plugin is a SIMULATED STAND-IN for NVIDIA/k8s-device-plugin, for the lab's
// simulated GPUs: upstream's image cannot be had there. It speaks the kubelet's real device-plugin
// API and reads GPUs through the real NVML bindings; flags, resource names and rules are upstream's.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/fsnotify/fsnotify"
	"github.com/urfave/cli/v2"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	banner       = "simulated stand-in for NVIDIA/k8s-device-plugin v0.20.0"
	retryStartup = 30 * time.Second
)

// Functions of NVML that are called without a fall-back: a library that lacks one would end the
// process in the middle of a call, with a message about symbols.
var required = []string{
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
	"nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeInstanceId", "nvmlEventSetCreate", "nvmlEventSetWait_v2",
	"nvmlDeviceRegisterEvents", "nvmlEventSetFree",
}

func main() {
	app := &cli.App{
		Name:            "nvidia-device-plugin",
		Usage:           banner,
		Version:         banner,
		Flags:           cliFlags(),
		HideHelpCommand: true,
		Action: func(c *cli.Context) error {
			klog.Infof("%s", banner)
			return run(c, nvml.New(), pluginapi.DevicePluginPath)
		},
	}
	if err := app.Run(os.Args); err != nil {
		klog.Error(err)
		os.Exit(1)
	}
}

// run serves until a signal ends it, and starts anew whenever the kubelet does.
func run(c *cli.Context, lib nvml.Interface, folder string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("kubelet: want its socket watched, have %w", err)
	}
	defer watcher.Close()
	if err := watcher.Add(folder); err != nil {
		return fmt.Errorf("kubelet: want %s watched, have %w; mount it", folder, err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	kubelet := filepath.Join(folder, filepath.Base(pluginapi.KubeletSocket))
	lost := make(chan struct{}, 1)

	for {
		serving, err := serve(c, lib, folder, lost)
		if err != nil {
			return err
		}
		again := retry(serving)
		restart := false
		for !restart {
			select {
			case <-again:
				restart = true
			case event := <-watcher.Events:
				if event.Name == kubelet && event.Has(fsnotify.Create) {
					klog.Info("the kubelet has made a new socket: registering again")
					restart = true
				}
			case err := <-watcher.Errors:
				klog.Warningf("watching %s: %v", folder, err)
			case <-lost:
				if serving.conf.Flags.RestartOnDeviceUnhealthy {
					serving.stop()
					return errors.New("devices: want all healthy, have one lost; restarting as configured")
				}
			case s := <-signals:
				if s != syscall.SIGHUP {
					klog.Infof("%v: stopping", s)
					serving.stop()
					return nil
				}
				restart = true
			}
		}
		serving.stop()
	}
}

// generation is one start of all plugins.
type generation struct {
	conf     config
	plugins  []*plugin
	lib      nvml.Interface // nil if NVML was not initialised
	complete bool
}

func (g *generation) stop() {
	for _, p := range g.plugins {
		p.stop()
	}
	if g.lib != nil {
		g.lib.Shutdown()
	}
}

func retry(g *generation) <-chan time.Time {
	if g.complete {
		return nil
	}
	klog.Infof("not all plugins have started: trying again in %v", retryStartup)
	return time.After(retryStartup)
}

func serve(c *cli.Context, lib nvml.Interface, folder string, lost chan<- struct{}) (*generation, error) {
	conf, err := loadConfig(c)
	if err != nil {
		return nil, err
	}
	klog.Infof("configuration: %+v", conf)
	g := &generation{conf: conf, complete: true}
	if err := initialise(lib); err != nil {
		if conf.Flags.FailOnInitError {
			return nil, err
		}
		klog.Errorf("%v; waiting, as failOnInitError is false", err)
		return g, nil
	}
	g.lib = lib
	search := discovery{lib: lib, strategy: conf.Flags.MigStrategy, sysfs: "/sys", procfs: "/proc"}
	found, err := search.find()
	if err != nil {
		g.stop()
		return nil, err
	}
	if len(found) == 0 {
		klog.Info("no devices found: waiting")
	}
	for _, name := range found.names() {
		p := newPlugin(conf, name, found[name], folder)
		p.onLost = func() {
			select {
			case lost <- struct{}{}:
			default:
			}
		}
		g.plugins = append(g.plugins, p)
		if err := p.start(lib); err != nil {
			klog.Error(err)
			g.complete = false
			break
		}
	}
	return g, nil
}

func initialise(lib nvml.Interface) error {
	ret := lib.Init()
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return errors.New("NVML: want libnvidia-ml.so.1 in the container, have none; " +
			"is nvidia the default container runtime, or the pod's runtime class")
	}
	if ret != nvml.SUCCESS {
		return failed("it initialised", ret)
	}
	for _, symbol := range required {
		if err := lib.Extensions().LookupSymbol(symbol); err != nil {
			lib.Shutdown()
			return fmt.Errorf("NVML: want function %s, have a library without it: %w", symbol, err)
		}
	}
	return nil
}
