module button_counter #(
    parameter STABLE_CYCLES = 4,
    parameter MODULUS       = 10
) (
    input  logic       clk,
    input  logic       reset,
    input  logic       btn_up,
    input  logic       btn_down,
    input  logic       btn_clear,
    output logic [3:0] ones,
    output logic [3:0] tens,
    output logic       wrapped
);

    logic up_level, down_level, clear_level;
    logic up_pressed, down_released, clear_pressed;
    logic ones_carry, ones_borrow, tens_carry, tens_borrow;

    debouncer #(.STABLE_CYCLES(STABLE_CYCLES)) u_up_debouncer (
        .clk(clk), .rst_n(~reset), .raw(btn_up), .clean(up_level)
    );
    debouncer #(.STABLE_CYCLES(STABLE_CYCLES)) u_down_debouncer (
        .clk(clk), .rst_n(~reset), .raw(btn_down), .clean(down_level)
    );
    debouncer #(.STABLE_CYCLES(STABLE_CYCLES)) u_clear_debouncer (
        .clk(clk), .rst_n(~reset), .raw(btn_clear), .clean(clear_level)
    );

    edge_detector u_up_edge (
        .clk(clk), .rst(reset), .level(up_level), .rose(up_pressed), .fell()
    );
    edge_detector u_down_edge (
        .clk(clk), .rst(reset), .level(down_level), .rose(), .fell(down_released)
    );
    edge_detector u_clear_edge (
        .clk(clk), .rst(reset), .level(clear_level), .rose(clear_pressed), .fell()
    );

    digit_counter #(.MODULUS(MODULUS)) u_ones (
        .clk(clk), .rst(reset | clear_pressed), .inc(up_pressed), .dec(down_released), .digit(ones), .carry(ones_carry),
        .borrow(ones_borrow)
    );
    digit_counter #(.MODULUS(MODULUS)) u_tens (
        .clk(clk), .rst(reset | clear_pressed), .inc(ones_carry), .dec(ones_borrow), .digit(tens), .carry(tens_carry),
        .borrow(tens_borrow)
    );

    always_ff @(posedge clk) begin
        wrapped <= (tens_carry | tens_borrow) & ~reset & ~clear_pressed;
    end

endmodule
