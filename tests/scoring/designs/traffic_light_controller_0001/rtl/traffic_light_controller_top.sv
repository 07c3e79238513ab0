module traffic_light_controller_top #(
    parameter SHORT_COUNT = 10,
    parameter LONG_COUNT = 20
) (
    input  logic       i_clk,
    input  logic       i_rst_b,
    input  logic       i_vehicle_sensor_input,
    output logic [2:0] o_main,
    output logic [2:0] o_side
);
    logic short_trigger, long_trigger, short_expired, long_expired;

    traffic_controller_fsm fsm (
        .i_clk(i_clk),
        .i_rst_b(i_rst_b),
        .i_vehicle_sensor_input(i_vehicle_sensor_input),
        .i_short_timer(short_expired),
        .i_long_timer(long_expired),
        .o_short_trigger(short_trigger),
        .o_long_trigger(long_trigger),
        .o_main(o_main),
        .o_side(o_side)
    );

    timer_module #(.SHORT_COUNT(SHORT_COUNT), .LONG_COUNT(LONG_COUNT)) timers (
        .i_clk(i_clk),
        .i_rst_b(i_rst_b),
        .i_short_trigger(short_trigger),
        .i_long_trigger(long_trigger),
        .o_short_timer(short_expired),
        .o_long_timer(long_expired)
    );
endmodule
