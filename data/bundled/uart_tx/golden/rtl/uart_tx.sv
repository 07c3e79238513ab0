module uart_tx (
    input  logic        clk,
    input  logic        rst,
    input  logic [15:0] baud_div,
    input  logic [1:0]  parity_mode,
    input  logic        two_stop,
    input  logic [7:0]  tx_data,
    input  logic        tx_valid,
    output logic        tx_ready,
    output logic        tx
);
    logic [15:0] period;
    logic [15:0] ticks;
    logic [8:0]  shifter;
    logic [3:0]  bits_left;

    logic        has_parity;
    logic        parity_bit;
    logic [15:0] last_tick;

    assign has_parity = (parity_mode == 2'b01) || (parity_mode == 2'b10);
    assign parity_bit = (^tx_data) ^ (parity_mode == 2'b01);
    assign last_tick  = (baud_div == 16'd0) ? 16'd0 : baud_div - 16'd1;

    always_ff @(posedge clk) begin
        if (rst) begin
            tx        <= 1'b1;
            tx_ready  <= 1'b1;
            period    <= 16'd0;
            ticks     <= 16'd0;
            shifter   <= 9'h1ff;
            bits_left <= 4'd0;
        end else if (tx_ready) begin
            if (tx_valid) begin
                tx        <= 1'b0;
                tx_ready  <= 1'b0;
                period    <= last_tick;
                ticks     <= last_tick;
                shifter   <= {has_parity ? parity_bit : 1'b1, tx_data};
                bits_left <= 4'd9 + has_parity + two_stop;
            end
        end else if (ticks != 16'd0) begin
            ticks <= ticks - 16'd1;
        end else if (bits_left == 4'd0) begin
            tx_ready <= 1'b1;
        end else begin
            ticks     <= period;
            tx        <= shifter[0];
            shifter   <= {1'b1, shifter[8:1]};
            bits_left <= bits_left - 4'd1;
        end
    end
endmodule
