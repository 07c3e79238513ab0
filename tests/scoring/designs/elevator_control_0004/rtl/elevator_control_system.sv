// Requests are latched; the lights follow the state by one clock, so that they last as long as the movement is seen.
module elevator_control_system #(
    parameter N = 8,
    parameter DOOR_OPEN_TIME_MS = 500
) (
    input  wire clk,
    input  wire reset,
    input  wire [N-1:0] call_requests,
    input  wire emergency_stop,
    input  wire overload,
    output wire [$clog2(N)-1:0] current_floor,
    output reg  direction,
    output reg  door_open,
    output reg  [2:0] system_status,
    output reg  up_led,
    output reg  down_led,
    output wire overload_led
);
    localparam [2:0] IDLE = 0, MOVING_UP = 1, MOVING_DOWN = 2, EMERGENCY_HALT = 3, DOOR_OPEN = 4;
`ifdef SIMULATION
    localparam DOOR_CYCLES = 5000;
`else
    localparam DOOR_CYCLES = DOOR_OPEN_TIME_MS * 100000;
`endif
    reg [$clog2(DOOR_CYCLES+1)-1:0] left;
    reg [$clog2(N)-1:0] floor;
    reg [N-1:0] wanted;
    reg above, below, overloaded;

    assign current_floor = floor;
    assign overload_led = overload;

    always @(posedge clk or posedge reset)
        if (reset) begin
            {system_status, floor, wanted, above, below, overloaded, up_led, down_led, door_open} <= 0;
            left <= 0;
            direction <= 1;
        end else begin
            wanted <= (wanted | call_requests) & ~(system_status == DOOR_OPEN ? {{(N-1){1'b0}}, 1'b1} << floor : {N{1'b0}});
            above <= system_status != EMERGENCY_HALT && (wanted >> floor) > 1;
            below <= system_status != EMERGENCY_HALT && (wanted & (({{(N-1){1'b0}}, 1'b1} << floor) - 1)) != 0;
            up_led <= system_status == MOVING_UP;
            down_led <= system_status == MOVING_DOWN;
            direction <= system_status != MOVING_DOWN;
            door_open <= system_status == DOOR_OPEN && (overload || left != 0);
            overloaded <= overload || (overloaded && system_status == DOOR_OPEN);
            if (system_status != DOOR_OPEN) left <= DOOR_CYCLES;
            else if (overloaded) left <= 0;
            else if (left != 0) left <= left - 1;

            if (emergency_stop) system_status <= EMERGENCY_HALT;
            else if (system_status == EMERGENCY_HALT) begin
                system_status <= IDLE;
                floor <= 0;
            end else if (overload) system_status <= DOOR_OPEN;
            else case (system_status)
                IDLE: system_status <= wanted[floor] ? DOOR_OPEN : above ? MOVING_UP : below ? MOVING_DOWN : IDLE;
                MOVING_UP: begin
                    if ((wanted >> floor) > 1) floor <= floor + 1;
                    system_status <= (wanted >> floor) <= 1 ? IDLE : wanted[floor+1] ? DOOR_OPEN : MOVING_UP;
                end
                MOVING_DOWN: begin
                    if (floor != 0) floor <= floor - 1;
                    system_status <= floor == 0 ? IDLE : wanted[floor-1] ? DOOR_OPEN : MOVING_DOWN;
                end
                default: if (left == 0 || overloaded) system_status <= IDLE;
            endcase
        end
endmodule
